"""Bytes of a push per link, worked out by hand."""

import pytest

from rlightning.weights.traffic import busiest, paired_routes, weight_routes

PLACEMENT = {
    "a": {"train_policies": ["t0", "t1"], "eval_policies": []},
    "b": {"train_policies": [], "eval_policies": ["e0", "e1"]},
    "c": {"train_policies": [], "eval_policies": ["e2", "e3"]},
    "d": {"train_policies": ["t2"], "eval_policies": ["e4", "e5"]},
}


@pytest.mark.parametrize(
    ("strategy", "broadcast", "link", "node"),
    [
        # The object store brings 100 bytes to each node once; 2 policies copy them out, or they are copied once.
        ("None", False, 100, 200),
        ("Double", False, 100, 200),
        ("Shared", False, 100, 100),
        ("Sharded", False, 100, 100),
        # A broadcast goes to each receiver, of which Shared has one per node.
        ("Double", True, 200, 200),
        ("Shared", True, 100, 100),
    ],
)
def test_bytes_per_link_by_strategy(strategy, broadcast, link, node):
    routes = weight_routes(PLACEMENT, strategy, 100, broadcast=broadcast)
    # d serves itself; b and c are served by the node that just learns, whose train policies take turns.
    found = {(route.sender, route.node, route.target): (route.link_bytes, route.node_bytes) for route in routes}
    assert found == {("t2", "d", "d"): (0, node), ("t0", "a", "b"): (link, node), ("t1", "a", "c"): (link, node)}
    assert busiest(routes) == ({"a": 2 * link}, {"b": link, "c": link})
    assert sorted(name for route in routes for name in route.receivers) == ["e0", "e1", "e2", "e3", "e4", "e5"]


def test_policies_of_this_process_hand_on_a_reference():
    local = {"here": {"train_policies": ["t0"], "eval_policies": ["e0"]}}
    (route,) = weight_routes(local, "Double", 100, local="here")
    assert (route.how, route.link_bytes) == ("in memory", 0)
    (route,) = weight_routes(local, "Double", 100)
    assert route.how == "Ray's object store"


@pytest.mark.parametrize("strategy", ["None", "Double", "Shared", "Sharded"])
def test_processes_of_one_node_hand_on_by_memory_and_others_do_not(strategy):
    routes = weight_routes(PLACEMENT, strategy, 100, node_memory=True)
    ways = {(route.node, route.target): route.how for route in routes}
    assert ways.pop(("d", "d")) == "shared memory"
    assert all(way.startswith("Ray's object store") for way in ways.values())
    # 100 bytes out of the learner of d, and into its two eval policies, or once into what both act with.
    (own,) = [route.node_bytes for route in routes if route.target == "d"]
    assert own == {"None": 300, "Double": 300, "Shared": 100, "Sharded": 200}[strategy]


def test_colocated_pairs_use_no_link():
    (route,) = paired_routes([("t0", "a", "e0", "a")], 100)
    assert (route.link_bytes, route.node_bytes, route.how) == (0, 100, "shared memory")
