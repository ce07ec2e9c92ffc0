"""What more nodes cost on paper, worked out by hand."""

import sys
from dataclasses import replace
from pathlib import Path

from rlightning.assembly.plan import plan_run
from rlightning.assembly.sizes import Sizes
from rlightning.config import Config
from tests.placement.makers import nodes

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    from more_nodes import Load, Rates, estimate, estimates, load_of, moves
finally:
    sys.path.pop(0)

LOAD = Load(
    learning_share=0.125,
    trains=2,
    shards=1,
    evals=4,
    envs=8,
    steps=10,
    step_bytes=1000,
    weight_bytes=10**6,
    gradient_bytes=10**6,
    gradient_steps=16,
)
RATES = Rates(calls_per_s=1000, link_gb_per_s=1.0, memory_gb_per_s=10.0)


def test_one_node_has_both_roles_and_uses_no_link():
    found = estimate(LOAD, 1, "Double", RATES)
    # Steps: 10 x (4 evals + 8 envs + 1 shard) = 130; 2 per shard, 2 per train policy: 6; 1 way, 4 receive, 4 are told.
    assert found.calls == 130 + 6 + 1 + 4 + 4
    # One call per eval policy instead of 130.
    assert found.fragment_calls == found.calls - 130 + 4
    assert (found.out_bytes, found.in_bytes, found.data_bytes, found.gradient_bytes) == (0, 0, 0, 0)
    assert found.copy_bytes == 4 * 10**6
    assert found.bottleneck == "calls"


def test_eight_nodes_are_one_that_learns_and_seven_that_act():
    found = estimate(LOAD, 8, "Double", RATES)
    assert found.out_bytes == 7 * 10**6
    assert found.in_bytes == 10**6
    # 56 env workers make 10 steps of 1,000 bytes, all into one node.
    assert found.data_bytes == 56 * 10 * 1000
    assert found.gradient_bytes == 0
    assert found.seconds["weights out"] == 0.007


def test_learners_exchange_gradients_when_there_are_several_nodes_of_them():
    found = estimate(LOAD, 64, "Double", RATES)
    # 8 nodes learn: 16 steps x 2 x 1 MB x 7/8.
    assert found.gradient_bytes == 28 * 10**6
    # 56 nodes act, 7 for each node that learns.
    assert found.out_bytes == 7 * 10**6


def test_shared_memory_is_written_once_per_node_and_received_by_one():
    shared, double = (estimate(LOAD, 64, strategy, RATES) for strategy in ("Shared", "Double"))
    assert shared.copy_bytes * 4 == double.copy_bytes
    # 56 nodes x 4 eval policies receive, or 56 do.
    assert double.calls - shared.calls == 56 * 3


def test_the_bottleneck_moves_from_the_controller_to_the_links():
    big = replace(LOAD, weight_bytes=10**8, gradient_bytes=10**8)
    assert moves(big, RATES)[-1].startswith("by fragment, ")
    stepwise, fragment = (
        [estimate(replace(big, by_fragment=by), nodes, "Double", RATES).bottleneck for nodes in (1, 8, 64, 1000)]
        for by in (False, True)
    )
    # 1 node: 145 calls take 0.145 s, 4 copies of 100 MB 0.04 s. 8 nodes: 7 x 100 MB out take 0.7 s, as many calls more.
    assert stepwise[0] == "calls"
    assert fragment[:2] == ["copies", "weights out"]
    # 64: gradients of 2.8 GB take 2.8 s; 1,000: calls take longer than that.
    assert fragment[2] == "gradients"
    assert fragment[3] == "calls"
    assert moves(big, RATES)[-1].count(", then ") == 3


def test_all_sizes_and_strategies_are_estimated_but_broadcasts_of_parts():
    found = estimates(LOAD)
    assert {one.nodes for one in found} == {1, 8, 64, 1000}
    assert {one.strategy for one in found} == {"None", "Double", "Shared", "Sharded"}
    assert {one.strategy for one in estimates(replace(LOAD, broadcast=True))} == {"None", "Double", "Shared"}


def test_the_load_of_a_node_is_that_of_the_plan():
    remote = {"remote_env": True, "remote_eval": True, "remote_train": True, "remote_storage": True}
    cluster = {"train_worker_num": 4, "eval_worker_num": 6, "buffer_worker_num": 2}
    config = Config.model_validate(
        {
            "env": {"name": "CartPole-v1", "num_workers": 4},
            "cluster": remote | cluster | {"placement": {"strategy": "disaggregate"}},
            "policy": {"train_num_gpus": 1.0},
        }
    )
    sizes = Sizes(observation=4, action=1, weights=100, parameters=20)
    found = load_of(plan_run(config, nodes(4, gpus=2)), sizes, passes=3)
    # 2 nodes learn, with 2 train policies and 1 shard each; 2 act, with 3 eval policies and 2 envs each.
    assert (found.learning_share, found.trains, found.shards, found.evals, found.envs) == (0.5, 2, 1, 3, 2)
    # 128 steps of 4 sub-envs are 2 minibatches of 256, three times over; a step is 4 + 1 bytes and 15 of columns.
    assert (found.gradient_steps, found.gradient_bytes, found.steps, found.step_bytes) == (6, 80, 128, 20)
