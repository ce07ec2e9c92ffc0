"""An env goes on from a stored state bit for bit as if nothing had happened."""

import gymnasium as gym
import numpy as np
import pytest

from rlightning.checkpoint import load_state, save_state
from rlightning.config import EnvConfig
from rlightning.env import EnvWorker
from rlightning.errors import CheckpointError
from rlightning.simulators.gymnasium import GymnasiumEnv
from rlightning.types import PolicyResponse

N = 2


def kind(name, limit=30, **options):
    return EnvConfig(name=name, num_envs=N, max_episode_steps=limit, **options)


KINDS = {
    "CartPole native": kind("CartPole-v1", None),
    "CartPole sync": kind("CartPole-v1", None, vectorization="sync"),
    "Pendulum": kind("Pendulum-v1"),
    "Acrobot": kind("Acrobot-v1"),
    "HalfCheetah": kind("HalfCheetah-v5"),
    "Ant": kind("Ant-v5"),
    "Humanoid": kind("Humanoid-v5"),
    "Catch": kind("rlightning/Catch-v0"),
    "SyncVectorEnv": kind("tests.env.doubles:painters", None),
    "actions that are kept": kind("tests.env.doubles:KeepingEnv"),
    "actions that are kept by a SyncVectorEnv": kind("tests.env.doubles:keeping_vector", None),
    "dict of arrays": kind("tests.env.doubles:TreeEnv", None),
}


def actions(meta, count):
    """Sample the same actions every time, as numbers of our own: sampling changes the space."""
    rng = np.random.default_rng(3)

    def draw(space):
        if isinstance(space, gym.spaces.Dict):
            return {key: draw(part) for key, part in space.spaces.items()}
        if isinstance(space, gym.spaces.Discrete):
            return rng.integers(0, space.n, N)
        return rng.uniform(-1, 1, (N, *space.shape)).astype(space.dtype)

    return [PolicyResponse(draw(meta.action_space)) for _ in range(count)]


def assert_equal(left, right):
    assert type(left) is type(right)
    if isinstance(left, dict):
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, tuple):
        for a, b in zip(left, right, strict=True):
            assert_equal(a, b)
    elif left is not None:
        assert left.dtype == right.dtype
        assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", KINDS)
def test_a_fresh_env_goes_on_bit_for_bit(name, tmp_path):
    worker = EnvWorker(GymnasiumEnv, KINDS[name], 0, 7)
    script = actions(worker.get_meta(), 150)
    worker.reset()
    for response in script[:50]:
        last = worker.step(response)
    save_state(tmp_path / "state", {"env": worker.get_state()})
    expected = [worker.step(response) for response in script[50:]]

    # Another seed: nothing may depend on how the fresh env started.
    fresh = EnvWorker(GymnasiumEnv, KINDS[name], 0, 8)
    current = fresh.set_state(load_state(tmp_path / "state")["env"])
    found = [current] + [fresh.step(response) for response in script[50:]]
    for a, b in zip([last, *expected], found, strict=True):
        for field in ("observation", "reward", "terminated", "truncated", "is_reset", "final_observation"):
            assert_equal(getattr(a, field), getattr(b, field))
    episodes = worker.pop_episodes()
    assert episodes == fresh.pop_episodes()
    assert len(episodes) >= N or name == "actions that are kept by a SyncVectorEnv"  # it has no end


def test_taking_a_state_changes_nothing():
    watched, alone = (EnvWorker(GymnasiumEnv, KINDS["Ant"], 0, 7) for _ in range(2))
    watched.reset()
    alone.reset()
    for response in actions(watched.get_meta(), 40):
        watched.get_state()
        assert_equal(watched.step(response).observation, alone.step(response).observation)


def test_an_env_whose_model_changes_is_not_stored():
    worker = EnvWorker(GymnasiumEnv, KINDS["HalfCheetah"], 0, 7)
    worker.reset()
    assert worker.get_state() is not None
    worker._env._rows.envs[1].unwrapped.model.geom_friction[0, 0] *= 2
    assert worker.get_state() is None


def test_an_env_that_holds_what_cannot_be_described_is_not_stored():
    worker = EnvWorker(GymnasiumEnv, KINDS["Pendulum"], 0, 7)
    worker.reset()
    worker._env._rows.envs[0].unwrapped.camera = (frame for frame in ())
    assert worker.get_state() is None


def test_a_state_of_another_model_is_refused():
    ant, cheetah = (EnvWorker(GymnasiumEnv, KINDS[name], 0, 7) for name in ("Ant", "HalfCheetah"))
    ant.reset()
    state = ant.get_state()
    with pytest.raises(CheckpointError, match=r"runs 2 sub-envs of HalfCheetah-v5, and the state is that of 2 of Ant"):
        cheetah.set_state(state)
    with pytest.raises(CheckpointError):
        cheetah.set_state({**state, "env_name": "HalfCheetah-v5"})
