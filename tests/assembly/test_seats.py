"""The places of a run are found again by its configuration, kept in its folder, and let go of."""

import pytest
import yaml

from rlightning.assembly import seats as seats_room
from rlightning.assembly.assemble import build_env_group
from rlightning.assembly.place import plan_placement
from rlightning.assembly.seats import PLACED, PLAN, AnySeat, RunSeats, save_plan, seats_of
from rlightning.config import Config
from rlightning.configuring.load import load_config
from rlightning.errors import PlacementError
from rlightning.placement import Cluster, Node, Plan
from rlightning.runtime import ray_backend
from rlightning.runtime.ray_backend import RayNode

CLUSTER = Cluster((Node("a", 8), Node("b", 8)))


def config(strategy="disaggregate", **cluster):
    places = {"remote_env": True, "remote_eval": True, "remote_storage": True, "remote_train": True}
    cluster = {"placement": {"strategy": strategy}, "eval_worker_num": 2, **places, **cluster}
    return Config(env=[{"name": "CartPole-v1", "num_workers": 4}], cluster=cluster)


@pytest.fixture(autouse=True)
def _none_stays_open():
    yield
    seats_room._OPEN.clear()


def test_where_ray_decides_there_are_none():
    assert seats_of(config("default")) is None
    local = dict.fromkeys(("remote_env", "remote_eval", "remote_storage", "remote_train"), False)
    assert seats_of(config(**local)) is None


def test_all_parts_of_a_run_share_one_and_another_run_has_its_own():
    first = seats_of(config())
    assert seats_of(config()) is first
    # Looking for those of another run neither plans nor starts Ray.
    assert seats_of(config("colocate")) is not first
    assert first._plan is None


@pytest.mark.parametrize("strategy", ["disaggregate", "colocate"])
def test_what_is_kept_gives_every_worker_the_same_place_again(tmp_path, monkeypatch, strategy):
    made = config(strategy)
    plan = plan_placement(made, CLUSTER)
    save_plan(tmp_path, made, plan, CLUSTER)
    assert Plan.from_dict(yaml.safe_load((tmp_path / PLAN).read_text())) == plan
    monkeypatch.chdir(tmp_path)
    again = plan_placement(load_config(PLACED).config, CLUSTER)
    assert [(slot.worker, slot.node) for slot in again.slots] == [(slot.worker, slot.node) for slot in plan.slots]


def test_where_ray_decides_a_worker_that_no_node_can_hold_is_refused_at_once(monkeypatch):
    nodes = [RayNode(name, f"10.0.0.{place}", {"CPU": 8.0}) for place, name in enumerate("abc")]
    monkeypatch.setattr(ray_backend, "list_nodes", lambda: nodes)
    made = config("default", ray_address="auto")
    AnySeat(made).take()
    # There are 24 CPUs for the 17 that all ask for, and 8 on each node.
    policy = made.policy.model_copy(update={"train_num_cpus": 9.0})
    with pytest.raises(PlacementError) as caught:
        AnySeat(made.model_copy(update={"policy": policy})).take()
    assert "train[0] asks for 9 CPUs of one node, and no node of the cluster has that" in str(caught.value)
    assert "10.0.0.0..10.0.0.2 (8 CPUs, 0 GPUs each)" in str(caught.value)


@pytest.mark.ray
def test_a_run_takes_its_seats_before_a_worker_starts(ray_cluster, monkeypatch):
    def never(*_args, **_kwargs):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(ray_backend, "spawn", never)
    made = config("default", ray_address="auto")
    policy = made.policy.model_copy(update={"train_num_cpus": 1000.0})
    with pytest.raises(PlacementError, match="1000"):
        build_env_group(made.model_copy(update={"policy": policy}))


@pytest.mark.ray
def test_a_plan_that_does_not_fit_leaves_nothing_behind(ray_cluster):
    from rlightning.runtime import ray_backend

    before = ray_backend._joined
    seats = seats_of(config(ray_address="auto", train_worker_num=1000))
    with pytest.raises(PlacementError, match="1000"):
        seats.take()
    assert ray_backend._joined == before
    assert seats not in seats_room._OPEN


@pytest.mark.ray
def test_places_that_are_not_free_leave_nothing_behind(ray_cluster):
    from rlightning.runtime import ray_backend

    before = ray_backend._joined
    (node,) = ray_backend.list_nodes()
    # Other tests' workers hold a little of the node, so neither side asks for all of it: three quarters are held, and
    # the run wants half.
    cpus = node.resources["CPU"]
    held = ray_backend.reserve([(node.node_id, {"CPU": cpus * 0.75})], 60)
    try:
        seats = RunSeats(config(ray_address="auto", start_timeout_s=1.0, eval_worker_num=int(cpus / 2)))
        with pytest.raises(PlacementError, match="is not free after 1 s"):
            seats.take()
        assert ray_backend._joined == before
    finally:
        held.release()
