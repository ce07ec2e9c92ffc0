"""``check`` shows the plan of this machine or of a described cluster, and says what is wrong with either."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rlightning.assembly.picture import draw, fold, spans
from rlightning.assembly.plan import placement_options, plan_run, worker_requests
from rlightning.assembly.sizes import CONTEXT_GB, Sizes, device_memory, host_memory, measure, memory_of, routes_of
from rlightning.assembly.workers import plan_workers
from rlightning.commands.check import machine_at_hand
from rlightning.commands.cli import app
from rlightning.config import Config
from rlightning.configuring.cluster_file import read_cluster
from rlightning.configuring.load import load_config
from rlightning.errors import ConfigError, PlacementError
from rlightning.placement import Slot
from rlightning.runtime import ray_backend
from tests.doubles import LINE_META
from tests.engine.doubles import config as small_config
from tests.placement.makers import nodes, plan, seats, workers

REMOTE = {"remote_env": True, "remote_eval": True, "remote_train": True, "remote_storage": True}


def config(cluster=None, **sections):
    env = {"name": "CartPole-v1", "num_workers": 4}
    return Config.model_validate({"env": env, "cluster": REMOTE | (cluster or {})} | sections)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text):
    path = folder / "nodes.yaml"
    path.write_text(text)
    return path


def check(*arguments):
    return CliRunner().invoke(app, ["check", *arguments], env={"COLUMNS": "120"})


def test_requests_are_those_of_the_workers_that_are_processes():
    made = config({"remote_train": False, "needs": {"env": {"memory_gb": 2.0}}})
    found = worker_requests(made, plan_workers(made).all())
    names = [request.name for request in found]
    assert names == ["env[0]", "env[1]", "env[2]", "env[3]", "eval_env[0]", "eval[0]", "buffer[0]"]
    assert [request.memory_gb for request in found] == [2.0] * 4 + [0.0] * 3


def test_auto_is_a_shard_per_node_with_train_policies():
    options = {"train_worker_num": 4, "buffer_worker_num": "auto"}
    four = {"policy": {"train_num_gpus": 1.0}}
    # 2 GPUs per node: 4 train policies are on 2 nodes.
    assert plan_run(config(options, **four), nodes(2, gpus=2)).config.cluster.buffer_worker_num == 2
    local = plan_run(config(options | {"remote_storage": False}, **four), nodes(2, gpus=2))
    assert local.config.cluster.buffer_worker_num == len(local.workers.buffer) == 1
    pools = {"p": {"components": {"train": "0-3", "buffer": "all", "eval": "all", "env": "all"}}}
    manual = options | {"placement": {"mode": "manual"}, "resource_pool": pools}
    found = plan_run(config(manual, **four), nodes(2, gpus=2))
    assert [slot.node for slot in found.placement.of("buffer")] == ["n0", "n1"]


def test_the_plan_of_a_run_is_a_manual_pool_as_it_stands(folder):
    options = {"train_worker_num": 2, "buffer_worker_num": "auto", "eval_worker_num": 2}
    placement = {"strategy": "disaggregate", "env_strategy": "node-affinity"}
    cluster = nodes(3, gpus=1)
    found = plan_run(config(options | {"placement": placement}, policy={"train_num_gpus": 1.0}), cluster)
    (folder / "again.yaml").write_text("defaults: [run, _self_]\n" + yaml.safe_dump(placement_options(found, cluster)))
    (folder / "run.yaml").write_text(yaml.safe_dump(found.config.model_dump(mode="json")))
    again = load_config("again.yaml").config
    assert again.cluster.placement.mode == "manual"
    assert seats(plan_run(again, cluster).placement) == seats(found.placement)


def test_this_machine_has_as_many_cpus_as_the_workers_ask_for():
    # 4 env, 1 evaluation, 1 train, 1 eval, 1 shard.
    (node,) = machine_at_hand(plan_workers(config())).nodes
    assert node.cpus == max(os.cpu_count(), 8)
    (node,) = machine_at_hand(plan_workers(config({"train_worker_num": 10_000}))).nodes
    assert node.cpus == 10_007


def test_a_described_cluster_is_read(folder):
    cluster, description = read_cluster(
        write(folder, "nodes:\n  - {count: 2, cpus: 8, gpus: [4, 5]}\nnetwork_gb_per_s: 25\n")
    )
    assert [node.gpus for node in cluster.nodes] == [(4, 5), (4, 5)]
    assert description.network_gb_per_s == 25


def test_all_that_is_wrong_with_a_described_cluster_is_told_with_its_line(folder):
    path = write(folder, "nodes:\n  - {count: 0, cpu: 64}\n  - cpus: many\n    gpus: x\nnodez: 1\n")
    with pytest.raises(ConfigError) as caught:
        read_cluster(path)
    assert {(problem.path, problem.where, problem.suggestion) for problem in caught.value.problems} == {
        ("nodes.0.count", "nodes.yaml:2", ""),
        ("nodes.0.cpu", "nodes.yaml:2", "nodes.0.cpus"),
        ("nodes.0.cpus", "nodes.yaml:2", ""),
        ("nodes.1.cpus", "nodes.yaml:3", ""),
        ("nodes.1.gpus", "nodes.yaml:4", ""),
        ("nodez", "nodes.yaml:5", "nodes"),
    }


@pytest.mark.parametrize(
    "text", ["", "- a\n", "nodes: [\n", "nodes: []\n", "nodes: 3\n", "nodes:\n  - {cpus: 1, gpus: -2}\n"]
)
def test_nonsense_is_a_configuration_error(folder, text):
    write(folder, text)
    done = check("ppo_cartpole", "cluster=ray", "--cluster", "nodes.yaml")
    assert done.exit_code == 2
    assert "1 problem in the configuration" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_a_configuration_error(folder):
    done = check("ppo_cartpole", "cluster=ray", "--cluster", "nodes.yaml")
    assert done.exit_code == 2
    assert "there is no file nodes.yaml" in done.stderr


def test_check_shows_a_plan_for_64_nodes(folder):
    write(folder, "nodes:\n  - {count: 64, cpus: 64, gpus: 8, memory_gb: 512, gpu_memory_gb: 80}\n")
    done = check(
        "ppo_cartpole",
        "cluster=ray",
        "cluster.ray_address=auto",
        "cluster.train_worker_num=64",
        "cluster.eval_worker_num=448",
        "cluster.buffer_worker_num=auto",
        "env.num_workers=448",
        "policy.train_num_gpus=1",
        "policy.eval_num_gpus=0.5",
        "cluster.placement.strategy=disaggregate",
        "cluster.placement.env_strategy=node-affinity",
        "--cluster",
        "nodes.yaml",
    )
    assert done.exit_code == 0, done.stderr
    text = done.stdout
    for shown in (
        "n1..n7 as n0",
        "GPU 0: 1 ",
        "#0 train[0] 1 r0",
        "#512 buffer[0] r8",
        "ways of weights",
        "8 eval policies on n8",
        "busiest links",
        "80 GB",
    ):
        assert shown in text
    assert all(len(line) <= 120 for line in text.partition("who sits where")[2].splitlines())


def test_check_says_why_workers_do_not_fit_on_this_machine(folder):
    done = check("ppo_cartpole", "cluster=ray", "policy.train_num_gpus=64")
    assert done.exit_code == 1
    assert "64 GPUs are asked for (train 1 x 64)" in done.stderr
    assert "--cluster" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["check", "train"])
def test_devices_of_this_machine_that_are_asked_for_are_there(folder, monkeypatch, command):
    monkeypatch.setattr("rlightning.assembly.plan.available_gpus", lambda: 1)
    options = ["ppo_cartpole", "policy.train_num_gpus=2", "policy.eval_num_gpus=4", "env.num_gpus=1"]
    done = CliRunner().invoke(app, [command, *options], env={"COLUMNS": "120"})
    assert done.exit_code == 2
    for option, number in (("policy.train_num_gpus", 2), ("policy.eval_num_gpus", 4)):
        asked = f"{option}: asks for {number} GPUs for a worker of this process, and this machine has 1"
        assert asked in done.stderr
    assert "env.num_gpus" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((folder / "runs").glob("*"))


def test_devices_of_local_workers_are_compared_with_a_described_cluster(folder):
    write(folder, "nodes: [{count: 2, cpus: 8, gpus: 1}]\n")
    assert check("ppo_cartpole", "policy.train_num_gpus=1", "--cluster", "nodes.yaml").exit_code == 0
    done = check("ppo_cartpole", "policy.train_num_gpus=2", "--cluster", "nodes.yaml")
    assert done.exit_code == 2
    assert "no node of the cluster has more than 1" in done.stderr


def test_devices_for_a_ray_of_its_own_are_counted_before_it_starts(monkeypatch):
    monkeypatch.setattr("rlightning.device.available_gpus", lambda: 1)
    monkeypatch.setattr(ray_backend, "_start_own", pytest.fail)
    with pytest.raises(PlacementError, match="the workers need 2 GPUs and this machine has 1"):
        ray_backend._start("local", 1.0, 2.0)


def test_check_needs_a_description_of_a_running_cluster(folder):
    done = check("ppo_cartpole", "cluster=ray", "cluster.ray_address=auto")
    assert done.exit_code == 0
    assert "give it with --cluster" in done.stdout
    assert "who sits where" not in check("ppo_cartpole").stdout


def test_nodes_that_look_alike_are_drawn_once():
    cluster = nodes(4, cpus=4, gpus=2)
    found = plan(cluster, [*workers("train", 6, gpus=1), *workers("env", 4)], "disaggregate")
    drawn = draw(found, cluster)
    # n0 to n2 have two learners each, and n3 the envs.
    assert [folded.node.name for folded in fold(found, cluster)] == ["n0", "n3"]
    assert drawn[0].startswith("┌─ n0 · 2 of 4 CPUs · pool train")
    assert "  n1..n2 as n0" in drawn


def test_a_node_without_workers_says_so():
    cluster = nodes(1)
    assert "nothing" not in "".join(draw(plan(cluster, workers("env", 1)), cluster))
    assert "GPU 0: free" in "\n".join(draw(plan(cluster, []), cluster))
    assert "│ nothing" in "\n".join(draw(plan(nodes(1, gpus=0), []), nodes(1, gpus=0)))


def test_a_drawing_is_never_wider_than_it_is_told():
    cluster = nodes(2, gpus=8)
    found = plan(cluster, [*workers("train", 16, gpus=1), *workers("env", 8)])
    for width in (40, 80, 200):
        assert max(map(len, draw(found, cluster, width))) <= width


def test_numbers_are_written_in_short():
    assert spans([3]) == "3"
    assert spans(list(range(8))) == "0-7"
    assert spans([0, 2, 4, 6, 8]) == "0,2,4,..8"


def test_memory_of_a_device_is_that_of_its_policies_and_their_processes():
    # 1 GB of weights, all of them trainable: weights, gradients and two states of Adam are 4 GB; "Double" is 3 copies.
    double = {"policy": {"weight_buffer": {"buffer_strategy": "Double"}}}
    # A transition is two observations of 40 bytes, an action of 5, and 15 bytes of columns.
    sizes = Sizes(observation=40, action=5, weights=10**9, parameters=25 * 10**7)
    memory = memory_of(plan_run(config(**double)), sizes)
    assert (memory.train, memory.eval, memory.shared, memory.handed_on) == (4 * 10**9, 3 * 10**9, 0, 256 * 10**6)
    slots = [
        Slot("train[0]", "train", 0, "n0", (0,), 0.5, process="train[0]"),
        Slot("eval[0]", "eval", 1, "n0", (0,), 0.5, process="eval[0]"),
        Slot("env[0]", "env", 2, "n0", (0,), 0.1, process="eval[0]"),
        Slot("eval[1]", "eval", 3, "n0", process="eval[1]"),
        Slot("buffer[0]", "buffer", 4, "n0", process="buffer[0]"),
    ]
    assert device_memory(slots, 0, memory) == 7 + 2 * CONTEXT_GB
    assert device_memory(slots, 1, memory) == 0
    # 128 steps of 4 sub-envs of 100 bytes in one shard, one eval policy on the CPU, and the bucket that passes.
    assert host_memory(slots, 1, memory) == (3 * 10**9 + 128 * 4 * 100 + 256 * 10**6) / 1e9
    assert host_memory(slots[3:], 1, memory) == (3 * 10**9 + 128 * 4 * 100) / 1e9
    shared = {"policy": {"weight_buffer": {"buffer_strategy": "Shared"}}}
    assert memory_of(plan_run(config(**shared)), sizes).shared == 2 * 10**9
    # A load_state_dict of one's own gets all weights at once.
    assert memory_of(plan_run(config()), replace(sizes, loads_whole=True)).handed_on == 10**9


@pytest.mark.parametrize(("strategy", "loads_whole"), [("None", True), ("Double", False), ("Shared", False)])
def test_only_without_a_buffer_an_own_load_state_dict_makes_weights_travel_whole(strategy, loads_whole):
    own = small_config(policy={"weight_buffer": {"buffer_strategy": strategy}})
    assert measure(own, LINE_META).loads_whole is loads_whole


def test_weights_go_from_this_process_to_where_the_plan_says():
    cfg = config({"remote_train": False, "eval_worker_num": 2})
    routes = routes_of(plan_run(cfg, nodes(2, gpus=0)), 100)
    assert [(route.node, route.target, route.link_bytes) for route in routes] == [
        ("this process", "n0", 100),
        ("this process", "n1", 100),
    ]


def test_colocated_policies_are_never_left_to_chance():
    cfg = config({"is_colocated": True, "train_worker_num": 2, "eval_worker_num": 2})
    made = plan_run(cfg, nodes(2, gpus=0))
    found = made.placement
    assert [slot.node for slot in found.of("train")] == [slot.node for slot in found.of("eval")] == ["n0", "n1"]
    assert found.binding
    routes = routes_of(made, 100)
    assert [(route.how, route.link_bytes) for route in routes] == [("shared memory", 0)] * 2


def test_contradictions_of_placement_are_refused():
    def problems(*overrides):
        with pytest.raises(ConfigError) as caught:
            load_config("ppo_cartpole", overrides)
        return {problem.path for problem in caught.value.problems}

    near = "cluster.placement.env_strategy=node-affinity"
    assert problems(near, "cluster.remote_env=true") == {"cluster.placement.env_strategy"}
    assert problems("cluster.is_colocated=true", "cluster.placement.strategy=disaggregate") == {
        "cluster.placement.strategy"
    }
    assert problems("cluster.placement.mode=manual") == {"cluster.placement.mode"}
    assert problems("cluster.resource_pool.p.num_nodes=1") == {"cluster.resource_pool"}
    assert load_config("ppo_cartpole", [near, "cluster=ray"])


def test_read_cluster_names_files_as_a_person_would(folder):
    with pytest.raises(ConfigError, match="there is no file"):
        read_cluster(Path("x.yaml"))
