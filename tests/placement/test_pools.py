"""Manual placement: pools are parsed strictly, and overlap only where they are meant to."""

import pytest

from rlightning.errors import PlacementError
from rlightning.placement import Cluster, Node
from tests.placement.makers import manual, nodes, places, workers


def message(*arguments, **named):
    with pytest.raises(PlacementError) as caught:
        manual(*arguments, **named)
    return str(caught.value)


def nodes_of(found, role):
    return [slot.node for slot in found.of(role)]


def test_indices_count_through_the_nodes_of_a_pool():
    pools = {
        "learn": {"node_ids": ["n2", "n0"], "components": {"train": "0-3, 4-5", "buffer": "4"}},
        "act": {"num_nodes": 1, "components": {"eval": "0-1", "env": "all"}},
    }
    requests = [*workers("train", 6, gpus=1), *workers("buffer", 1), *workers("eval", 4, gpus=0.5), *workers("env", 3)]
    found = manual(nodes(3), requests, pools)
    # Places 0 to 3 are the GPUs of n2, 4 to 7 those of n0; n1 is the first node that no other pool names.
    assert places(found, "train") == [("n2", (device,)) for device in range(4)] + [("n0", (0,)), ("n0", (1,))]
    assert places(found, "buffer") == [("n0", ())]
    assert places(found, "eval") == [("n1", (0,)), ("n1", (0,)), ("n1", (1,)), ("n1", (1,))]
    assert nodes_of(found, "env") == ["n1"] * 3
    assert {slot.pool for slot in found.of("train")} == {"learn"}
    assert found.binding


def test_with_as_many_items_as_workers_each_has_its_own():
    found = manual(nodes(2), workers("train", 2, gpus=2), {"p": {"components": {"train": "1-2, 4+7"}}})
    assert places(found, "train") == [("n0", (1, 2)), ("n1", (0, 3))]
    # Otherwise neighbours are shared out in order.
    found = manual(nodes(2), workers("train", 4, gpus=2), {"p": {"components": {"train": "0-7"}}})
    assert places(found, "train") == [("n0", (0, 1)), ("n0", (2, 3)), ("n1", (0, 1)), ("n1", (2, 3))]


def test_where_a_pool_has_no_gpu_a_place_is_a_cpu():
    pools = {"p": {"cpus_per_node": 2, "gpus_per_node": 0, "components": {"env": "0-3"}}}
    found = manual(nodes(2, cpus=8), workers("env", 4), pools)
    assert nodes_of(found, "env") == ["n0", "n0", "n1", "n1"]


def test_pools_share_a_node_by_numbers():
    half = {"gpus_per_node": 2, "cpus_per_node": 8}
    pools = {"act": {**half, "node_ids": ["n0"], "components": {"eval": "all"}}}
    pools["learn"] = {**half, "node_ids": ["n0"], "components": {"train": "0-1"}}
    found = manual(nodes(1), [*workers("train", 2, gpus=1), *workers("eval", 2, gpus=1)], pools)
    assert places(found, "eval") == [("n0", (0,)), ("n0", (1,))]
    assert places(found, "train") == [("n0", (2,)), ("n0", (3,))]


def test_pools_overlap_where_they_are_meant_to():
    pools = {"a": {"components": {"train": "0-3"}}, "b": {"shares_with": ["a"], "components": {"eval": "0-3"}}}
    found = manual(nodes(1), [*workers("train", 4, gpus=0.5), *workers("eval", 4, gpus=0.5)], pools)
    assert places(found, "eval") == places(found, "train")


def test_shards_evaluation_and_tied_envs_need_no_pool_of_their_own():
    pools = {
        "learn": {"num_nodes": 1, "components": {"train": "0"}},
        "act": {"num_nodes": 1, "components": {"eval": "0-1"}},
    }
    requests = [
        *workers("train", 1, gpus=1),
        *workers("buffer", 1),
        *workers("eval", 2, gpus=0.5),
        *workers("env", 4, gpus=0.2),
        *workers("eval_env", 1),
    ]
    found = manual(nodes(2), requests, pools, "device-colocate")
    # Pools choose nodes in the order of their names: act has n0 and learn n1.
    assert nodes_of(found, "buffer") == nodes_of(found, "train") == ["n1"]
    assert places(found, "env") == [("n0", (0,)), ("n0", (1,))] * 2
    assert nodes_of(found, "eval_env") == ["n0"]


def test_an_index_out_of_range():
    text = message(nodes(2), workers("train", 9, gpus=1), {"p": {"components": {"train": "0-8"}}})
    assert text == (
        "cluster.resource_pool.p.components.train names place 8, and pool 'p' has places 0 to 7: n0 has 4 GPUs, n1 has "
        "4 GPUs"
    )


def test_a_component_in_two_pools_or_in_none():
    pools = {
        "a": {"num_nodes": 1, "components": {"train": "all"}},
        "b": {"num_nodes": 1, "components": {"train": "all"}},
    }
    text = message(nodes(2), [*workers("train", 1)], pools)
    assert text == "train is in the pools a, b: a component is in one; remove it from the others"
    text = message(nodes(2), [*workers("train", 1), *workers("env", 1)], {"a": {"components": {"train": "all"}}})
    assert text == "env is in no pool: add it to the components of one (a)"
    text = message(nodes(2), [*workers("train", 1)], {"a": {"components": {"train": "all", "env": "all"}}})
    assert text == "cluster.resource_pool.a.components.env: no env worker is a process of its own; remove it"


def test_counts_that_cannot_be_shared_out():
    text = message(nodes(1), workers("train", 3, gpus=1), {"p": {"components": {"train": "0-1"}}})
    assert "components.train: 2 places cannot be shared out evenly over 3 workers" in text
    assert "cluster.train_worker_num" in text
    text = message(nodes(1), workers("train", 2, gpus=1), {"p": {"components": {"train": "0-3"}}})
    assert "gives train[0] 2 GPUs (places 0, 1), and it asks for 1: name 1 for each worker" in text
    assert "policy.train_num_gpus" in text


def test_too_few_nodes():
    text = message(nodes(2), workers("train", 1), {"p": {"num_nodes": 3, "components": {"train": "all"}}})
    assert text == (
        "cluster.resource_pool.p asks for 3 nodes, and 2 are left that no other pool has: n0..n1 (16 CPUs, 4 GPUs "
        "each); lower its num_nodes, or that of another pool"
    )


def test_nodes_that_are_not_there_or_not_as_many_as_said():
    pools = {"p": {"node_ids": ["n0", "m1"], "num_nodes": 3, "components": {"train": "all"}}}
    text = message(nodes(2), workers("train", 1), pools)
    assert "node_ids names 'm1', and the cluster has no such node: n0..n1 (16 CPUs, 4 GPUs each)" in text
    assert "asks for num_nodes=3 and names 2 in node_ids" in text


def test_pools_that_overlap_without_being_meant_to():
    one = {"node_ids": ["n0"]}
    pools = {"a": {**one, "components": {"train": "all"}}, "b": {**one, "components": {"eval": "all"}}}
    text = message(nodes(1), [*workers("train", 1), *workers("eval", 1)], pools)
    assert text.startswith(
        "node n0 is in the pools a, b: say gpus_per_node and cpus_per_node in each of them, or shares_"
    )
    part = {**one, "gpus_per_node": 3, "cpus_per_node": 9}
    pools = {name: part | pool for name, pool in pools.items()}
    text = message(nodes(1), [*workers("train", 1), *workers("eval", 1)], pools)
    assert "pool.b.gpus_per_node asks for 3 GPUs of n0 (16 CPUs, 4 GPUs), of which 1 are left by other pools" in text
    assert "pool.b.cpus_per_node asks for 9 CPUs of n0 (16 CPUs, 4 GPUs), of which 7 are left by other pools" in text


def test_a_device_that_is_given_away_more_than_once():
    pools = {"p": {"components": {"train": "0", "eval": "0"}}}
    text = message(nodes(1), [*workers("train", 1, gpus=1), *workers("eval", 1, gpus=0.5)], pools)
    assert text.startswith("GPU 0 of n0 is given away 1.5 times: 1 of train[0] + 0.5 of eval[0]; name other places")


def test_a_node_whose_cpus_or_memory_are_given_away_more_than_once():
    cluster = Cluster((Node("n0", 2, memory_gb=1.0),))
    text = message(cluster, workers("env", 4, memory_gb=0.5), {"p": {"components": {"env": "0-1"}}})
    assert "n0 has 2 CPUs, and the workers there ask for 4 (4 env)" in text
    assert "n0 has 1 GB of memory, and the workers there ask for 2 (4 env)" in text
    text = message(nodes(1), workers("env", 4), {"p": {"cpus_per_node": 2, "components": {"env": "0"}}})
    assert "n0 has 2 CPUs in pool 'p', and the workers there ask for 4 (4 env)" in text


def test_a_worker_on_two_nodes_or_on_a_cpu_instead_of_a_gpu():
    text = message(nodes(2, gpus=2), workers("train", 1, gpus=2), {"p": {"components": {"train": "1-2"}}})
    assert "gives train[0] the places 1, 2, which are on more than one node" in text
    text = message(nodes(1, gpus=0), workers("train", 1, gpus=1), {"p": {"components": {"train": "0"}}})
    assert "gives train[0], which asks for 1 GPUs, the place 0, which is a CPU of n0" in text


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("0:7", "'0:7' is no range of places: write '0-7, 8-15', or 'all'"),
        ("7-0", "write '0-7'"),
        ("", "'' is no range of places"),
        ("1,,2", "''"),
    ],
)
def test_places_that_cannot_be_read(text, hint):
    assert hint in message(nodes(2), workers("train", 2, gpus=1), {"p": {"components": {"train": text}}})


def test_envs_that_are_written_away_from_their_policy():
    requests = [*workers("eval", 2, gpus=0.5), *workers("env", 4, gpus=0.1)]
    pools = {"p": {"components": {"eval": "0-1", "env": "0-3"}}}
    text = message(nodes(1), requests, pools, "device-colocate")
    # Env 2 belongs to eval policy 0, on device 0.
    assert "env[1]" not in text
    assert "env[2] is at n0 GPU 2 and eval[0], with which it shares its device" in text
    pools = {"a": {"num_nodes": 1, "components": {"eval": "all"}}, "b": {"num_nodes": 1, "components": {"env": "all"}}}
    text = message(nodes(2), requests, pools, "node-affinity")
    assert "env is in pool 'b' and eval, beside which it is to sit (cluster.placement.env_strategy), in 'a'" in text


def test_all_problems_of_pools_are_told_at_once():
    pools = {
        "a": {"node_ids": ["x"], "components": {"train": "all"}},
        "b": {"shares_with": ["c"], "components": {"train": "all"}},
    }
    text = message(nodes(1), workers("train", 1), pools)
    assert text.startswith("4 reasons")


def test_pools_do_not_depend_on_their_order():
    pools = {
        "b": {"num_nodes": 1, "components": {"eval": "all"}},
        "a": {"num_nodes": 1, "components": {"train": "all"}},
    }
    requests = [*workers("train", 1), *workers("eval", 1)]
    found = manual(nodes(2), requests, pools)
    assert found == manual(nodes(2), requests, dict(reversed(pools.items())))
    assert nodes_of(found, "train") == ["n0"]
