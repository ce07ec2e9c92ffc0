"""Who sits where by each strategy, worked out by hand."""

import pytest

from rlightning.errors import PlacementError
from rlightning.placement import Cluster, Node
from rlightning.placement.request import shard_count
from tests.placement.makers import STRATEGIES, nodes, places, plan, workers


def nodes_of(found, role):
    return [slot.node for slot in found.of(role)]


def test_default_spreads_evenly_and_neighbours_stay_together():
    # 2 learners on 4 nodes: one each on n0 and n1. 15 CPUs are left there, and 16 elsewhere: 8 envs fill them evenly.
    found = plan(nodes(4, gpus=0), [*workers("train", 2), *workers("env", 8)])
    assert nodes_of(found, "train") == ["n0", "n1"]
    assert nodes_of(found, "env") == ["n0", "n0", "n1", "n1", "n2", "n2", "n3", "n3"]
    assert not found.binding


def test_spreading_goes_by_what_nodes_have():
    # 12 workers on 8 + 4 CPUs: 8 and 4.
    found = plan(Cluster((Node("big", 8), Node("small", 4))), workers("env", 12))
    assert nodes_of(found, "env") == ["big"] * 8 + ["small"] * 4


def test_every_role_is_spread_evenly_whatever_others_take():
    # 3 large envs leave 8 of 16 CPUs on n0, and 12 on n1. 4 eval policies are 2/8 and 2/12 of them; 3/12 is no less.
    found = plan(nodes(2, gpus=0), [*workers("env", 3, cpus=4), *workers("eval", 4)])
    assert nodes_of(found, "env") == ["n0", "n0", "n1"]
    assert nodes_of(found, "eval") == ["n0", "n0", "n1", "n1"]


def test_workers_that_ask_for_nothing_are_spread_too():
    found = plan(nodes(2, gpus=0), workers("env", 4, cpus=0))
    assert nodes_of(found, "env") == ["n0", "n0", "n1", "n1"]


def test_shards_sit_beside_learners():
    found = plan(nodes(4, gpus=2), [*workers("train", 4, gpus=2), *workers("buffer", 2), *workers("env", 4)])
    assert nodes_of(found, "train") == ["n0", "n1", "n2", "n3"]
    # The first shard serves learners 0 and 1, the second 2 and 3.
    assert nodes_of(found, "buffer") == ["n0", "n2"]


def test_a_shard_goes_elsewhere_where_there_is_no_room_beside_a_learner():
    cluster = Cluster((Node("gpu", 1, (0,)), Node("cpu", 8)))
    found = plan(cluster, [*workers("train", 1, gpus=1), *workers("buffer", 1)])
    assert nodes_of(found, "buffer") == ["cpu"]


def test_disaggregate_gives_learners_the_first_nodes_and_acting_the_others():
    requests = [
        *workers("train", 8, gpus=1),
        *workers("buffer", 2),
        *workers("eval", 4, gpus=1),
        *workers("env", 8),
    ]
    found = plan(nodes(4), requests, "disaggregate")
    # 4 GPUs per node: the learners fill n0 and n1.
    assert nodes_of(found, "train") == ["n0"] * 4 + ["n1"] * 4
    assert nodes_of(found, "buffer") == ["n0", "n1"]
    assert nodes_of(found, "eval") == ["n2", "n2", "n3", "n3"]
    assert nodes_of(found, "env") == ["n2"] * 4 + ["n3"] * 4
    assert found.binding


def test_disaggregate_shares_a_single_node_and_no_device():
    requests = [*workers("train", 2, gpus=1), *workers("eval", 4, gpus=0.5), *workers("env", 4)]
    found = plan(nodes(1), requests, "disaggregate")
    assert places(found, "train") == [("n0", (0,)), ("n0", (1,))]
    assert places(found, "eval") == [("n0", (2,)), ("n0", (2,)), ("n0", (3,)), ("n0", (3,))]
    # Half a device that a learner leaves is not for the others.
    found = plan(nodes(1, gpus=2), [*workers("train", 1, gpus=0.5), *workers("eval", 1, gpus=0.5)], "disaggregate")
    assert places(found, "eval") == [("n0", (1,))]


def test_learners_without_devices_leave_nodes_with_devices_to_others():
    cluster = Cluster((Node("gpu", 8, (0,)), Node("cpu", 8)))
    found = plan(cluster, [*workers("train", 1), *workers("eval", 1, gpus=1)], "disaggregate")
    assert nodes_of(found, "train") == ["cpu"]
    assert nodes_of(found, "eval") == ["gpu"]


def test_colocate_pairs_share_a_device_where_they_fit_and_a_node_otherwise():
    found = plan(nodes(2), [*workers("train", 4, gpus=0.6), *workers("eval", 4, gpus=0.4)], "colocate")
    assert places(found, "eval") == places(found, "train") == [("n0", (0,)), ("n0", (1,)), ("n1", (0,)), ("n1", (1,))]
    found = plan(nodes(2), [*workers("train", 4, gpus=1), *workers("eval", 4, gpus=1)], "colocate")
    assert nodes_of(found, "eval") == nodes_of(found, "train") == ["n0", "n0", "n1", "n1"]
    assert len(set(places(found, "eval") + places(found, "train"))) == 8


def test_colocate_with_more_eval_policies_gives_each_learner_neighbours():
    found = plan(nodes(2), [*workers("train", 2, gpus=0.5), *workers("eval", 4, gpus=0.25)], "colocate")
    assert places(found, "eval") == [("n0", (0,)), ("n0", (0,)), ("n1", (0,)), ("n1", (0,))]


def test_device_colocate_is_a_node_where_the_device_is_the_cpu():
    found = plan(nodes(2, gpus=0), [*workers("eval", 2), *workers("env", 4)], env_strategy="device-colocate")
    # Env i belongs to eval policy i modulo 2.
    assert nodes_of(found, "eval") == ["n0", "n1"]
    assert nodes_of(found, "env") == ["n0", "n1", "n0", "n1"]
    assert found.binding


def test_process_colocate_takes_turns_on_one_cpu_and_shares_a_reservation():
    found = plan(nodes(1, cpus=2, gpus=0), [*workers("eval", 2), *workers("env", 4)], env_strategy="process-colocate")
    assert [slot.process for slot in found.of("env")] == ["eval[0]", "eval[1]", "eval[0]", "eval[1]"]
    assert [slot.cpus for slot in found.slots] == [1, 1, 0, 0, 0, 0]
    # An env that wants 2 CPUs where its policy has 1 takes one more.
    requests = [*workers("eval", 1), *workers("env", 2, cpus=2)]
    found = plan(nodes(1, cpus=2, gpus=0), requests, env_strategy="process-colocate")
    assert [slot.cpus for slot in found.slots] == [1, 1, 0]


def test_memory_and_custom_resources_decide_where_a_worker_fits():
    cluster = Cluster((Node("n0", 8, memory_gb=8), Node("n1", 8, memory_gb=64, resources={"robot": 1})))
    found = plan(cluster, [*workers("train", 1, memory_gb=16), *workers("env", 1, resources={"robot": 1})])
    assert nodes_of(found, "train") == ["n1"]
    assert nodes_of(found, "env") == ["n1"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_worker_that_needs_several_devices_gets_them_on_one_node(strategy):
    found = plan(nodes(2), [*workers("train", 2, gpus=3)], strategy)
    assert places(found, "train") == [("n0", (0, 1, 2)), ("n1", (0, 1, 2))]


def test_auto_is_a_shard_per_node_with_learners():
    # At most one per env worker, and a node never has more learners than there are.
    assert shard_count(["a", "a", "b"], 8) == 2
    assert shard_count(["a", "b", "c"], 2) == 2
    assert shard_count(["a"], 8) == 1


def test_env_workers_live_with_the_policies_that_answer_them_also_where_some_have_more():
    found = plan(nodes(1), [*workers("eval", 2), *workers("env", 5)], env_strategy="process-colocate")
    assert [slot.process for slot in found.of("env")] == ["eval[0]", "eval[1]", "eval[0]", "eval[1]", "eval[0]"]


def test_device_colocate_wants_a_share_of_both():
    requests = [*workers("eval", 2, gpus=0.5), *workers("env", 2)]
    with pytest.raises(PlacementError, match=r"env workers have no share of a device.*set env.num_gpus"):
        plan(nodes(1), requests, env_strategy="device-colocate")
