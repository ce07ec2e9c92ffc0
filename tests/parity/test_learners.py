"""Two learners: the numbers do not depend on where they live, and they learn what one learns."""

import pytest
import torch

from rlightning.assembly.assemble import assemble
from rlightning.config import ClusterConfig, Config, EnvConfig, PolicyConfig, TrainConfig
from tests.engine.doubles import CHEAP, REMOTE
from tests.parity.stretch import run

EPOCHS = 4


def cart_pole(learners=2, shards=2, **places):
    """PPO on 2 x 4 envs with all that has statistics of its own."""
    return Config(
        seed=7,
        env=[EnvConfig(name="CartPole-v1", num_workers=2, num_envs=4, num_cpus=0.01)],
        policy=PolicyConfig(
            model_cfg={"normalize_observation": True, "hidden_sizes": [16]},
            algo_cfg={"scale_reward": True, "target_kl": 0.05},
            optim_cfg={"schedule": "linear", "eps": 1e-3},
            **CHEAP,
        ),
        train=TrainConfig(max_epochs=10, max_rollout_steps=16, batch_size=32, check_ranks_interval=1),
        cluster=ClusterConfig(train_worker_num=learners, buffer_worker_num=shards, **places),
    )


@pytest.fixture(scope="module")
def here():
    return run(cart_pole(), EPOCHS)


def anywhere(report):
    """Leave out the global generators, which each process has for itself."""
    digests = {path: value for path, value in report["digests"].items() if ".global_generators." not in path}
    return {**report, "digests": digests}


def test_a_second_run_repeats_the_first_bit_for_bit(here):
    assert run(cart_pole(), EPOCHS) == here
    assert here["stale"] == []
    assert {row["train/rows"] for row in here["rows"]} <= set(range(8 * 14, 8 * 16 + 1))


def test_shards_do_not_matter(here):
    assert run(cart_pole(shards=1), EPOCHS) == here


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_with_all_workers_remote_nothing_differs(here, ray_cluster):
    remote = run(cart_pole(**REMOTE), EPOCHS)
    assert remote["rows"] == here["rows"]
    assert anywhere(remote) == anywhere(here)


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("places", [{"remote_train": True, "remote_env": True}, {"remote_storage": True}])
def test_with_some_workers_remote_nothing_differs(here, ray_cluster, places):
    mixed = run(cart_pole(**places), EPOCHS)
    assert mixed["rows"] == here["rows"]
    assert anywhere(mixed) == anywhere(here)


def test_two_learners_run_like_one(here):
    """The same seed collects the same first rollout; from there on rounding may tell them apart."""
    one = run(cart_pole(learners=1, shards=1), 1)["rows"][0]
    two = here["rows"][0]
    assert two.keys() == one.keys()
    assert {name: two[name] for name in one} == pytest.approx(one, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("stop", [2])
def test_a_run_of_two_learners_goes_on_where_it_stopped(here, tmp_path, stop):
    run(cart_pole(), stop, tmp_path)
    second = run(cart_pole(), EPOCHS, checkpoint=tmp_path / "state")
    assert second["rows"] == here["rows"][stop:]
    assert anywhere(second) == {**anywhere(here), "rows": second["rows"]}


def test_learners_have_their_own_reward_scaling_and_generators():
    with assemble(cart_pole()) as engine:
        engine.start()
        engine.run_epoch()
        state = engine.get_state()["policy"]
    (peer,) = state["train_peers"]
    assert not torch.equal(peer["extra"]["reward_carry"], state["train"]["extra"]["reward_carry"])
    assert not torch.equal(peer["generator"], state["train"]["generator"])
