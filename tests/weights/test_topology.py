"""Every eval policy gets its weights from exactly one learner, and no weights cross nodes that need not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlightning.weights.topology import (
    STRATEGIES,
    build_transfer_info_for_colocated,
    build_transfer_info_for_disaggregated,
)


def node(trains=(), evals=()):
    return {"train_policies": list(trains), "eval_policies": list(evals)}


def test_train_only_eval_only_and_mixed_nodes():
    placement = {
        "a": node(["t0", "t1"]),
        "b": node([], ["e0", "e1"]),
        "c": node(["t2"], ["e2"]),
        "d": node([], ["e3"]),
        "f": node(["t3"]),
        "g": node([], ["e4"]),
    }
    router_map, info = build_transfer_info_for_disaggregated(placement, "Double")
    # The mixed node serves itself; b, d and g take turns between the train-only nodes a and f.
    assert router_map == {"c": ["c"], "a": ["b", "g"], "f": ["d"]}
    assert info == {
        "c": [{"sender": "t2", "receiver": ["e2"], "intra_node": True}],
        "a": [
            {"sender": "t0", "receiver": ["e0", "e1"], "intra_node": False},
            {"sender": "t1", "receiver": ["e4"], "intra_node": False},
        ],
        "f": [{"sender": "t3", "receiver": ["e3"], "intra_node": False}],
    }


def test_with_shared_memory_one_receives_for_its_node_and_nobody_beside_the_sender():
    placement = {"a": node(["t0"], ["e0", "e1"]), "b": node([], ["e2", "e3"])}
    _, info = build_transfer_info_for_disaggregated(placement, "Shared")
    assert info == {
        "a": [
            {"sender": "t0", "receiver": [], "intra_node": True},
            {"sender": "t0", "receiver": ["e2"], "intra_node": False},
        ]
    }


def test_mixed_nodes_serve_others_only_where_no_node_just_trains():
    placement = {"a": node(["t0"], ["e0"]), "b": node([], ["e1"]), "c": node(["t1"])}
    assert build_transfer_info_for_disaggregated(placement, "None")[0] == {"a": ["a"], "c": ["b"]}


def test_no_learner_and_unknown_strategies_are_refused():
    with pytest.raises(ValueError, match="No train policy found"):
        build_transfer_info_for_disaggregated({"a": node([], ["e0"])}, "None")
    with pytest.raises(ValueError, match="no weight buffer strategy 'Triple'"):
        build_transfer_info_for_disaggregated({}, "Triple")
    assert build_transfer_info_for_disaggregated({"a": node(["t0"])}, "None") == ({}, {})
    with pytest.raises(ValueError, match="1 train policies for 2 eval policies"):
        build_transfer_info_for_colocated(["t0"], ["e0", "e1"])


placements = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


@given(placements, st.sampled_from(sorted(STRATEGIES)))
def test_every_receiver_has_exactly_one_sender_and_no_route_crosses_nodes_that_need_not(counts, strategy):
    placement = {
        name: node([f"t{name}{i}" for i in range(trains)], [f"e{name}{i}" for i in range(evals)])
        for name, (trains, evals) in counts.items()
    }
    learners = [policy for held in placement.values() for policy in held["train_policies"]]
    actors = [policy for held in placement.values() for policy in held["eval_policies"]]
    if actors and not learners:
        with pytest.raises(ValueError, match="No train policy found"):
            build_transfer_info_for_disaggregated(placement, strategy)
        return
    router_map, info = build_transfer_info_for_disaggregated(placement, strategy)
    served = [target for targets in router_map.values() for target in targets]
    assert sorted(served) == sorted(name for name, held in placement.items() if held["eval_policies"])
    for source, targets in router_map.items():
        assert len(targets) == len(info[source])
        for target, item in zip(targets, info[source], strict=True):
            assert item["sender"] in placement[source]["train_policies"]
            assert item["intra_node"] == (source == target)
            expected = placement[target]["eval_policies"]
            if strategy == "Shared":
                expected = [] if source == target else expected[:1]
            assert item["receiver"] == expected
            # Who has a learner on its own node gets nothing from another one.
            assert source == target or not placement[target]["train_policies"]
    # Receiving nodes are spread evenly.
    loads = [sum(target != source for target in targets) for source, targets in router_map.items()]
    pure = [name for name, held in placement.items() if held["train_policies"] and not held["eval_policies"]]
    servers = pure or [name for name, held in placement.items() if held["train_policies"]]
    if servers and loads:
        assert max(loads) <= -(-sum(loads) // len(servers))
