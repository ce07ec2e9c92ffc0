"""Collected by fragment or step by step, here or elsewhere: the numbers are the same."""

import pytest

from rlightning.config import ClusterConfig, Config, EnvConfig, PlacementConfig, PolicyConfig, TrainConfig
from tests.engine.doubles import CHEAP, REMOTE
from tests.parity.stretch import run
from tests.parity.test_places import anywhere

BY_FRAGMENT = PlacementConfig(env_strategy="process-colocate")
EPOCHS = 3


def cart_pole(actors, **cluster):
    """PPO with normaliser and reward scaling on 3 x 4 envs: with 2 eval policies, one has two env workers."""
    return Config(
        seed=7,
        env=[EnvConfig(name="CartPole-v1", num_workers=3, num_envs=4, num_cpus=0.01)],
        policy=PolicyConfig(
            model_cfg={"normalize_observation": True},
            algo_cfg={"scale_reward": True},
            weight_buffer={"verify_interval": 1},
            **CHEAP,
        ),
        train=TrainConfig(max_epochs=10, max_rollout_steps=16, batch_size=32),
        cluster=ClusterConfig(eval_worker_num=actors, **cluster),
    )


@pytest.fixture(scope="module")
def stepwise():
    return {actors: run(cart_pole(actors), EPOCHS) for actors in (1, 2, 3)}


@pytest.mark.parametrize("actors", [1, 2, 3])
def test_fragments_give_the_numbers_of_single_steps(stepwise, actors):
    assert run(cart_pole(actors, placement=BY_FRAGMENT), EPOCHS) == stepwise[actors]


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_fragments_of_other_processes_give_the_same_numbers(stepwise, ray_cluster):
    remote = run(cart_pole(2, placement=BY_FRAGMENT, **REMOTE), EPOCHS)
    assert remote["rows"] == stepwise[2]["rows"]
    assert anywhere(remote) == anywhere(stepwise[2])


def test_a_run_by_fragment_goes_on_from_a_checkpoint_as_if_it_had_not_ended(stepwise, tmp_path):
    first = tmp_path / "first"
    first.mkdir()
    run(cart_pole(2, placement=BY_FRAGMENT), 2, first)
    resumed = run(cart_pole(2, placement=BY_FRAGMENT), EPOCHS, checkpoint=first / "state")
    assert resumed["rows"] == stepwise[2]["rows"][2:]
    assert resumed["digests"] == stepwise[2]["digests"]
