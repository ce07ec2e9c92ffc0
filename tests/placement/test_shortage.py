"""What does not fit is told before anything starts: asked, there, who, and which option to change."""

import pickle

import pytest

from rlightning.errors import PlacementError
from rlightning.placement import Cluster, Node
from tests.placement.makers import nodes, plan, workers


def message(*arguments, **named):
    with pytest.raises(PlacementError) as caught:
        plan(*arguments, **named)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


def test_too_few_gpus():
    text = message(nodes(2), [*workers("train", 8, gpus=1), *workers("eval", 4, gpus=0.5)])
    assert text == (
        "10 GPUs are asked for (train 8 x 1, eval 4 x 0.5), and the cluster has 8: n0..n1 (16 CPUs, 4 GPUs each); "
        "lower cluster.train_worker_num or policy.train_num_gpus or cluster.eval_worker_num or policy.eval_num_gpus"
    )


def test_too_few_cpus_and_memory_and_robots_are_told_at_once():
    cluster = nodes(1, cpus=4, gpus=0, memory_gb=8.0, resources={"robot": 1.0})
    text = message(cluster, [*workers("env", 6, memory_gb=2.0, resources={"robot": 1.0}), *workers("buffer", 1)])
    head, *rest = text.split("\n  - ")
    assert head == "3 reasons why the workers do not fit:"
    assert [line.partition(" are asked")[0] for line in rest] == ["7 CPUs", "12 GB of memory", "6 of robot"]
    assert "(buffer 1 x 1, env 6 x 1), and the cluster has 4" in rest[0]
    assert "lower cluster.buffer_worker_num or env.num_workers or env.num_cpus" in rest[0]
    assert "n0 (4 CPUs, 0 GPUs, 8 GB, 1 robot)" in rest[1]
    assert rest[2].endswith("lower env.num_workers or cluster.needs.env")


def test_a_worker_that_no_node_can_hold():
    text = message(nodes(4, cpus=8), [*workers("env", 2, cpus=9)])
    assert text.startswith("env[0] asks for 9 CPUs of one node, and no node of the cluster has that: n0..n3 (8 CPUs, ")
    assert "env.num_cpus" in text


def test_more_than_one_device_and_not_whole_ones():
    text = message(nodes(1), workers("train", 1, gpus=1.5))
    assert "train[0] asks for 1.5 GPUs: a worker takes a part of one device, or whole ones" in text
    assert "policy.train_num_gpus" in text


def test_envs_that_do_not_fit_on_the_device_of_their_policy():
    requests = [*workers("eval", 1, gpus=0.5), *workers("env", 6, gpus=0.1)]
    text = message(nodes(1), requests, env_strategy="device-colocate")
    # 0.5 + 6 x 0.1 = 1.1.
    assert "0.5 of eval[0] + 0.1 of env[0] + 0.1 of env[1] + 0.1 of env[2] + 3 more are 1.1 of the one device" in text
    assert "raise cluster.eval_worker_num" in text
    assert "cluster.placement.env_strategy" in text


def test_envs_that_do_not_fit_on_the_node_of_their_policy():
    requests = [*workers("eval", 1), *workers("env", 16)]
    text = message(nodes(2, cpus=16), requests, env_strategy="node-affinity")
    assert "eval[0] with env[0], env[1], env[2] and 13 more ask for 17 CPUs of one node" in text


def test_who_finds_no_place_when_pieces_are_left():
    # 3 of 4 CPUs each are taken; together 2 are left, and 2 on one node are not.
    cluster = Cluster((Node("a", 4), Node("b", 4)))
    text = message(cluster, [*workers("train", 2, cpus=3), *workers("env", 1, cpus=2)])
    assert text == (
        "env[0] found no place in the cluster: each asks for 2 CPUs of one node, and what is left is a..b (1 CPUs, 0 "
        "GPUs each); lower env.num_workers or env.num_cpus"
    )


def test_the_other_pool_is_named_where_it_took_what_is_missing():
    requests = [*workers("train", 1, gpus=0.5), *workers("eval", 2, gpus=0.6)]
    text = message(nodes(1, gpus=2), requests, "disaggregate")
    assert "eval[1] found no place in what the other pool of cluster.placement.strategy=disaggregate leaves" in text


def test_many_kinds_of_nodes_are_summed_up():
    cluster = Cluster(tuple(Node(f"n{i}", i % 10) for i in range(100)))
    text = message(cluster, workers("env", 1, cpus=500))
    assert "10 x (0 CPUs, 0 GPUs)" in text
    assert len(text) < 1200
