"""Data stay on their node where they can, learners get equally much, and on one node nothing is new."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlightning.buffer.assignment import blocks, routes_by_node

NODES = st.sampled_from("abcd")


@st.composite
def runs(draw):
    """Nodes of env workers, shards and train policies."""
    shards = draw(st.lists(NODES, min_size=1, max_size=5))
    envs = draw(st.lists(NODES, min_size=len(shards), max_size=20))
    learners = draw(st.lists(NODES, min_size=len(shards), max_size=10))
    return envs, shards, learners


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 8))
def test_on_one_node_the_routes_are_blocks(envs, learners, shards):
    shards = min(shards, envs, learners)
    routes = routes_by_node(["a"] * envs, ["a"] * shards, ["a"] * learners)
    for found, count in ((routes.env_shards, envs), (routes.learner_shards, learners)):
        assert found == tuple(shard for shard, block in enumerate(blocks(count, shards)) for _ in block)


@given(runs())
def test_every_shard_has_env_workers_and_learners(run):
    envs, shards, learners = run
    routes = routes_by_node(*run)
    assert len(routes.env_shards) == len(envs)
    assert len(routes.learner_shards) == len(learners)
    assert set(routes.env_shards) == set(routes.learner_shards) == set(range(len(shards)))


@given(runs())
def test_a_learner_crosses_nodes_only_where_it_must(run):
    _, shards, learners = run
    routes = routes_by_node(*run)
    crossing = [i for i, shard in enumerate(routes.learner_shards) if shards[shard] != learners[i]]
    shards_on, learners_on = Counter(shards), Counter(learners)
    # It has no shard on its node, or another node has more shards than learners and needs one.
    missing = sum(max(0, count - learners_on[node]) for node, count in shards_on.items())
    strangers = sum(count for node, count in learners_on.items() if node not in shards_on)
    assert len(crossing) <= missing + strangers


@given(runs())
def test_a_node_takes_others_env_workers_only_when_it_has_all_its_own(run):
    envs, shards, _ = run
    routes = routes_by_node(*run)
    for node in set(shards):
        owners = {i for i, place in enumerate(shards) if place == node}
        taken = [i for i, shard in enumerate(routes.env_shards) if shard in owners]
        local = [i for i in taken if envs[i] == node]
        assert len(local) == min(len(taken), envs.count(node))


def test_learners_get_equally_much_though_nodes_have_different_numbers_of_them():
    # 8 learners on a and 4 on b: 8/12 and 4/12 of 24 env workers are 16 and 8, 2 per learner.
    routes = routes_by_node(["c"] * 24, ["a", "b"], ["a"] * 8 + ["b"] * 4)
    assert Counter(routes.env_shards) == {0: 16, 1: 8}
    assert routes.learner_shards == (0,) * 8 + (1,) * 4


def test_env_workers_go_to_the_shard_of_their_node_whatever_their_order():
    routes = routes_by_node(["a", "b"] * 4, ["b", "a"], ["a", "b"])
    assert routes.env_shards == (1, 0) * 4
    assert routes.learner_shards == (1, 0)


def test_too_few_env_workers_or_learners_are_refused():
    with pytest.raises(ValueError, match="2 shards for 1 env workers and 3 train policies"):
        routes_by_node(["a"], ["a", "b"], ["a"] * 3)
