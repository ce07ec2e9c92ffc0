"""The numbers do not depend on where the workers live."""

import pytest

from rlightning.config import ClusterConfig, Config, EnvConfig, PolicyConfig, TrainConfig
from tests.engine.doubles import CHEAP, REMOTE
from tests.parity.stretch import run

EPOCHS = 5
MIXED = {
    "envs and learner": {"remote_env": True, "remote_train": True},
    "actors and buffer": {"remote_eval": True, "remote_storage": True},
}
BOTH = {"remote_train": True, "remote_eval": True}


def cart_pole(seed=7, strategy="None", eval_worker_num=2, **places):
    """PPO with all that has a state of its own: normaliser, reward scaling, schedules, 2 x 4 envs, 2 eval policies."""
    return Config(
        seed=seed,
        env=[EnvConfig(name="CartPole-v1", num_workers=2, num_envs=4, num_cpus=0.01)],
        policy=PolicyConfig(
            model_cfg={"normalize_observation": True},
            algo_cfg={"scale_reward": True, "clip_schedule": "linear"},
            optim_cfg={"schedule": "linear"},
            weight_buffer={"buffer_strategy": strategy, "verify_interval": 1},
            **CHEAP,
        ),
        train=TrainConfig(max_epochs=10, max_rollout_steps=16, batch_size=32),
        cluster=ClusterConfig(eval_worker_num=eval_worker_num, **places),
    )


def half_cheetah(**places):
    return Config(
        seed=7,
        env=[EnvConfig(name="HalfCheetah-v5", num_workers=2, num_envs=2, num_cpus=0.01)],
        policy=PolicyConfig(model_cfg={"hidden_sizes": [16]}, **CHEAP),
        train=TrainConfig(max_epochs=2, max_rollout_steps=8, batch_size=16),
        cluster=ClusterConfig(**places),
    )


@pytest.fixture(scope="module")
def here():
    return run(cart_pole(), EPOCHS)


def grid(**places):
    """An image, a text and a choice in a dict, wrapped, with numbers of info."""
    env = EnvConfig(
        name="tests.env.doubles:GridEnv",
        num_workers=2,
        num_envs=2,
        num_cpus=0.01,
        wrappers=[{"name": "NormalizeReward"}],
        logged_info=["carried"],
        text={"length": 20},
    )
    return Config(
        seed=7,
        env=[env],
        policy=PolicyConfig(model_cfg={"hidden_sizes": [16]}, **CHEAP),
        train=TrainConfig(max_epochs=2, max_rollout_steps=8, batch_size=16),
        cluster=ClusterConfig(**places),
    )


def parameters(report):
    return {path: digest for path, digest in report["digests"].items() if path.startswith("policy.train.modules")}


def anywhere(report):
    """Leave out the global generators, which each process has for itself; what learns and acts draws from its own."""
    digests = {path: value for path, value in report["digests"].items() if ".global_generators." not in path}
    return {**report, "digests": digests}


def test_a_second_run_repeats_the_first_bit_for_bit(here):
    again = run(cart_pole(), EPOCHS)
    assert again["rows"] == here["rows"]
    assert again == here
    # Gymnasium's own vector CartPole spends a step on each reset, which is no transition.
    assert EPOCHS * 2 * 4 * 15 < here["env_steps"] < EPOCHS * 2 * 4 * 16


def test_another_seed_differs(here):
    other = run(cart_pole(seed=8), EPOCHS)
    ours, theirs = parameters(here), parameters(other)
    assert ours.keys() == theirs.keys()
    same = [path for path in ours if ours[path] == theirs[path]]
    # All but the count of the observations and the like.
    assert not [path for path in same if path.endswith(("weight", "bias", "mean", "var"))]


def test_all_policies_have_the_learners_weights_and_statistics_bit_for_bit(here):
    assert here["stale"] == []


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["Shared", "None"])
def test_with_all_workers_remote_nothing_differs(here, ray_cluster, strategy):
    remote = run(cart_pole(strategy=strategy, **REMOTE), EPOCHS)
    assert remote["rows"] == here["rows"]
    assert anywhere(remote) == anywhere(here)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "places", [pytest.param(MIXED["envs and learner"], marks=pytest.mark.exhaustive), MIXED["actors and buffer"]]
)
def test_with_some_workers_remote_nothing_differs(here, ray_cluster, places):
    mixed = run(cart_pole(**places), EPOCHS)
    assert mixed["rows"] == here["rows"]
    assert anywhere(mixed) == anywhere(here)


@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_the_way_that_weights_take_changes_nothing(here, strategy):
    assert run(cart_pole(strategy=strategy), EPOCHS) == here


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_the_way_that_weights_take_between_processes_changes_nothing(here, ray_cluster, strategy):
    remote = run(cart_pole(strategy=strategy, **BOTH), EPOCHS)
    assert remote["rows"] == here["rows"]
    assert anywhere(remote) == anywhere(here)


@pytest.mark.parametrize("places", [{}, pytest.param(BOTH, marks=[pytest.mark.ray, pytest.mark.exhaustive])])
def test_colocated_policies_give_the_same_numbers(request, places):
    if places:
        request.getfixturevalue("ray_cluster")
    here = run(cart_pole(eval_worker_num=1), 2)
    beside = run(cart_pole(eval_worker_num=1, is_colocated=True, **places), 2)
    assert beside["rows"] == here["rows"]
    assert anywhere(beside) == anywhere(here)


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [pytest.param(half_cheetah, marks=pytest.mark.exhaustive), grid])
def test_a_simulator_in_other_processes_gives_the_same_numbers(ray_cluster, kind):
    remote = run(kind(remote_env=True, remote_train=True), 2)
    assert anywhere(remote) == anywhere(run(kind(), 2))
