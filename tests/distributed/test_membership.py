"""Who has which rank and is in which group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlightning.distributed import Member, ParallelMode, plan_groups

NODES = Member("a", "n1", (1,), True), Member("b", "n0", (3,), True), Member("c", "n1", (0,)), Member("d", "n0", (2,))


def ranks_of(plan):
    return {each.member.key: each.rank for each in plan.members}


def test_ranks_go_by_node_and_then_by_device():
    plan = plan_groups(NODES)
    # n1 is named first; on it c has device 0 and a device 1.
    assert ranks_of(plan) == {"c": 0, "a": 1, "d": 2, "b": 3}
    assert [(each.local_rank, each.local_size) for each in plan.members] == [(0, 2), (1, 2)] * 2


def test_groups_are_those_of_nodes_transfers_and_learners():
    plan = plan_groups(NODES, [("a", ["c", "d"]), ("b", ["d"]), ("a", ["d"])])
    assert [(group.mode.value, group.ranks) for group in plan.groups] == [
        ("intra_node", (0, 1)),
        ("intra_node", (2, 3)),
        # The sender comes first, and it may have several groups.
        ("weight_transfer", (1, 0, 2)),
        ("weight_transfer", (3, 2)),
        ("weight_transfer", (1, 2)),
        # The learners in the order given: a, b.
        ("train_data_parallel", (1, 3)),
    ]


def test_on_the_cpu_those_given_first_come_first():
    members = [Member(key, "local", (), key < 2) for key in range(4)]
    assert ranks_of(plan_groups(members)) == {0: 0, 1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    ("devices", "wish", "chosen"),
    [
        ([(0,), (1,)], "nccl", "nccl"),
        ([(0,), (0,)], "nccl", "gloo"),  # a device that two ranks share
        ([(0,), ()], "nccl", "gloo"),
        ([(), ()], "nccl", "gloo"),
        ([(0,), (1,)], "gloo", "gloo"),
    ],
)
def test_nccl_is_for_ranks_with_a_device_of_their_own(devices, wish, chosen):
    members = [Member(place, "n0", own, True) for place, own in enumerate(devices)]
    plan = plan_groups(members, backend=wish)
    assert plan.backend == chosen
    assert plan.groups[-1].backend == chosen


def test_learners_on_gpus_keep_nccl_beside_actors_on_the_cpu():
    members = [Member(place, "n0", (place,), True) for place in range(2)] + [Member(2, "n0")]
    plan = plan_groups(members, [(0, [2])])
    assert plan.backend == "gloo"
    assert [(group.mode.value, group.backend) for group in plan.groups] == [
        ("intra_node", "gloo"),
        ("weight_transfer", "gloo"),
        ("train_data_parallel", "nccl"),
    ]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(-1, 3), st.booleans()), max_size=12))
def test_everybody_has_one_rank_and_is_in_the_group_of_its_node(facts):
    members = [
        Member(key, node, (device,) if device >= 0 else (), trains) for key, (node, device, trains) in enumerate(facts)
    ]
    plan = plan_groups(members)
    assert sorted(ranks_of(plan)) == list(range(len(members)))
    assert [each.rank for each in plan.members] == list(range(len(members)))
    nodes = [group.ranks for group in plan.groups if group.mode is ParallelMode.INTRA_NODE]
    assert sorted(rank for ranks in nodes for rank in ranks) == list(range(len(members)))
    for ranks in nodes:
        # Consecutive ranks, all of one node, numbered through from 0.
        assert list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
        assert len({plan.members[rank].member.node for rank in ranks}) == 1
        assert [plan.members[rank].local_rank for rank in ranks] == list(range(len(ranks)))
    learners = [group for group in plan.groups if group.mode is ParallelMode.TRAIN_DATA_PARALLEL]
    assert len(learners) == any(member.trains for member in members)
