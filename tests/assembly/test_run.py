"""The parts of a run find what they share by the run, keep its plan in its folder, and give back what they hold."""

import gc

import pytest
import yaml

from rlightning.assembly.assemble import assemble, build_data_buffer, build_env_group, build_policy_group
from rlightning.assembly.plan import is_placed, plan_run
from rlightning.assembly.run import PLACED, PLAN, Run, save_plan
from rlightning.config import Config
from rlightning.configuring.load import load_config
from rlightning.errors import PlacementError
from rlightning.placement import Cluster, Node
from rlightning.runtime import ray_backend
from rlightning.runtime.ray_backend import RayNode
from tests.engine.doubles import config as small_config

CLUSTER = Cluster((Node("a", 8), Node("b", 8)))


def config(strategy="disaggregate", **cluster):
    places = {"remote_env": True, "remote_eval": True, "remote_storage": True, "remote_train": True}
    cluster = {"placement": {"strategy": strategy}, "eval_worker_num": 2, **places, **cluster}
    return Config(env=[{"name": "CartPole-v1", "num_workers": 4}], cluster=cluster)


def near():
    """A small run whose env workers live in the processes of their eval policies."""
    return small_config(cluster={"placement": {"env_strategy": "process-colocate"}})


def test_where_ray_decides_nothing_is_planned():
    assert not is_placed(config("default"))
    local = dict.fromkeys(("remote_env", "remote_eval", "remote_storage", "remote_train"), False)
    assert not is_placed(config(**local))
    assert is_placed(config())
    # The plan that `rlightning check` shows is the one of the run.
    assert is_placed(config("default", is_colocated=True))


def test_builders_with_one_configuration_object_continue_one_run():
    made = config()
    first = Run.of(made, "build_env_group")
    assert Run.of(made, "build_data_buffer") is first
    first.built.add("build_env_group")
    # A second env group of the same object is another run, and so is any other object.
    second = Run.of(made, "build_env_group")
    assert second is not first
    assert Run.of(config(), "build_data_buffer") not in (first, second)


def test_a_run_that_nothing_uses_is_forgotten():
    made = config()
    Run.of(made, "build_env_group").built.add("build_env_group")
    gc.collect()
    assert Run.of(made, "build_policy_group").built == set()


@pytest.mark.parametrize("is_same_object", [True, False])
def test_two_runs_of_equal_configurations_do_not_take_each_others_workers(is_same_object):
    one = near()
    two = one if is_same_object else near()
    assert one == two
    first, second = build_env_group(one), build_env_group(two)
    # The policies of the second run are built first.
    groups = [build_policy_group(two, second.env_meta), build_policy_group(one, first.env_meta)]
    try:
        for envs, group in zip((second, first), groups, strict=True):
            assert group.eval_list == list(dict.fromkeys(worker.host.target for worker in envs.workers))
        assert not {id(policy) for policy in groups[0].eval_list} & {id(policy) for policy in groups[1].eval_list}
    finally:
        for part in (first, second):
            part.close()
        for group in groups:
            group.shutdown()


def test_two_assembled_runs_of_one_configuration_train_side_by_side():
    made = near()
    with assemble(made) as one, assemble(made) as two:
        for engine in (one, two):
            engine.start()
            engine.run_epoch()
        assert one.env_steps == two.env_steps > 0
        assert one.policy_group.eval_list[0] is not two.policy_group.eval_list[0]


def test_builders_work_alone():
    made = small_config()
    envs = build_env_group(made)
    envs.close()
    # The run of the envs is over; the buffer is that of another one.
    build_data_buffer(made).close()
    build_policy_group(made, envs.env_meta).shutdown()


def test_the_plan_of_a_run_is_computed_once(monkeypatch):
    from rlightning.assembly import run as module

    planned, plan_workers = [], module.plan_workers
    monkeypatch.setattr(module, "plan_workers", lambda made: planned.append(made) or plan_workers(made))
    with assemble(small_config()):
        assert len(planned) == 1


@pytest.mark.parametrize("strategy", ["disaggregate", "colocate"])
def test_what_is_kept_gives_every_worker_the_same_place_again(tmp_path, monkeypatch, strategy):
    plan = plan_run(config(strategy), CLUSTER)
    save_plan(tmp_path, plan, CLUSTER)
    assert yaml.safe_load((tmp_path / PLAN).read_text()) == plan.placement.to_dict()
    monkeypatch.chdir(tmp_path)
    again = plan_run(load_config(PLACED).config, CLUSTER)
    assert again.nodes() == plan.nodes()


def test_where_ray_decides_a_worker_that_no_node_can_hold_is_refused_at_once(monkeypatch):
    nodes = [RayNode(name, f"10.0.0.{place}", {"CPU": 8.0}) for place, name in enumerate("abc")]
    monkeypatch.setattr(ray_backend, "list_nodes", lambda: nodes)
    made = config("default", ray_address="auto")
    Run(made).reserve()
    # There are 24 CPUs for the 17 that all ask for, and 8 on each node.
    policy = made.policy.model_copy(update={"train_num_cpus": 9.0})
    with pytest.raises(PlacementError) as caught:
        Run(made.model_copy(update={"policy": policy})).reserve()
    assert "train[0] asks for 9 CPUs of one node, and no node of the cluster has that" in str(caught.value)
    assert "10.0.0.0..10.0.0.2 (8 CPUs, 0 GPUs each)" in str(caught.value)


@pytest.mark.ray
def test_a_run_takes_its_places_before_a_worker_starts(ray_cluster, monkeypatch):
    def never(*_args, **_kwargs):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(ray_backend, "spawn", never)
    made = config("default", ray_address="auto")
    policy = made.policy.model_copy(update={"train_num_cpus": 1000.0})
    with pytest.raises(PlacementError, match="1000"):
        build_env_group(made.model_copy(update={"policy": policy}))


@pytest.mark.ray
def test_a_plan_that_does_not_fit_leaves_nothing_behind(ray_cluster):
    before = ray_backend._joined
    with pytest.raises(PlacementError, match="1000"):
        build_env_group(config(ray_address="auto", train_worker_num=1000))
    assert ray_backend._joined == before


@pytest.mark.ray
def test_places_that_are_not_free_leave_nothing_behind(ray_cluster):
    before = ray_backend._joined
    (node,) = ray_backend.list_nodes()
    # Other tests' workers hold a little of the node, so neither side asks for all of it: three quarters are held, and
    # the run wants half.
    cpus = node.resources["CPU"]
    held = ray_backend.reserve([(node.node_id, {"CPU": cpus * 0.75})], 60)
    try:
        with pytest.raises(PlacementError, match="is not free after 1 s"):
            build_env_group(config(ray_address="auto", start_timeout_s=1.0, eval_worker_num=int(cpus / 2)))
        assert ray_backend._joined == before
    finally:
        held.release()
