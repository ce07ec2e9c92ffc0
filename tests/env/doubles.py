"""Small real envs, importable by worker processes."""

from __future__ import annotations

import itertools
import threading

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from rlightning.config import EnvConfig
from rlightning.env import BaseEnv
from rlightning.types import EnvMeta, EnvRet

EPISODE_LENGTH = 7


class CountingEnv(gym.Env):
    """Episodes of 7 steps; the first ends in a terminal state, the second is truncated, and so on.

    The observation is (episode, step), the reward of a step is 100 episode + step.
    """

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.episode = self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observe(), {"some": "info"}

    def step(self, action):
        self.t += 1
        is_over = self.t == EPISODE_LENGTH
        terminated, truncated = is_over and self.episode % 2 == 1, is_over and self.episode % 2 == 0
        return self.observe(), 100.0 * self.episode + self.t, terminated, truncated, {"t": self.t}

    def observe(self):
        return np.array([self.episode, self.t], np.float64)


class SamplingEnv(gym.Env):
    """Draws all that it shows from a space that belongs to the class."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


class KeepingEnv(gym.Env):
    """Keeps its last action and its options, and writes into both; shows the sum of its actions."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    metadata = {"render_fps": 20}  # noqa: RUF012 -- Gymnasium's own form

    def __init__(self, goal=()):
        self.goal = goal
        self.last_action = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sum = np.zeros(2)
        self.start = None if options is None else options.pop("start")
        return self.sum, {}

    def step(self, action):
        self.sum += action + self.last_action
        self.last_action = action
        action += 1
        return self.sum, 0.0, False, False, {}


def keeping_vector(num_envs):
    """Keeping envs behind Gymnasium's vector env, which hands out rows of one array."""
    return SyncVectorEnv([KeepingEnv] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class MissionSpace(gym.Space):
    """A space of texts that is no Text, as MiniGrid's."""

    def __init__(self):
        super().__init__(dtype=str)

    def contains(self, x):
        return isinstance(x, str)

    def __eq__(self, other):
        return isinstance(other, MissionSpace)


class GridEnv(gym.Env):
    """Shows an image and a mission, as MiniGrid does; episodes of 2 and 3 steps in turn, of which the first succeed."""

    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (7, 7, 3), np.uint8), direction=gym.spaces.Discrete(4), mission=MissionSpace()
    )
    action_space = gym.spaces.Discrete(3)

    def __init__(self, mission="go to the red ball"):
        self.mission, self.episode, self.t = mission, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        succeeds = self.episode % 2 == 1
        is_over = self.t == (2 if succeeds else 3)
        info = {"is_success": succeeds, "carried": np.array([self.t]), "note": "text"}
        return self.observe(), 1.0, is_over and succeeds, is_over and not succeeds, info

    def observe(self):
        return {"image": np.full((7, 7, 3), self.t, np.uint8), "direction": self.t, "mission": self.mission}


class Doubled(gym.RewardWrapper):
    """A wrapper of a user's own."""

    def reward(self, reward):
        return 2 * reward


class SilentEnv(CountingEnv):
    """Says whether it succeeded; the even episodes do."""

    def step(self, action):
        *result, info = super().step(action)
        return (*result, info | {"is_success": self.episode % 2 == 0})


def successful_vector(num_envs, mode):
    """Envs that say whether they succeeded, behind Gymnasium's vector env."""
    return SyncVectorEnv([SilentEnv] * num_envs, autoreset_mode=AutoresetMode(mode))


class DenseFinals(SyncVectorEnv):
    """Gives final_obs as one array instead of an array of objects; rows without an end have NaN."""

    def step(self, actions):
        *result, info = super().step(actions)
        if "final_obs" in info:
            dense = np.full((self.num_envs, 2), np.nan)
            for i, final in enumerate(info["final_obs"]):
                if final is not None:
                    dense[i] = final
            info = {**info, "final_obs": dense}
        return (*result, info)


def counting_vector(num_envs, mode, dense=False, copy=True):
    """Counting envs behind Gymnasium's vector env in one of the three autoreset modes."""
    cls = DenseFinals if dense else SyncVectorEnv
    return cls([CountingEnv] * num_envs, copy=copy, autoreset_mode=AutoresetMode(mode))


class NumpyVector(VectorEnv):
    """A native vector env: one seed for all rows; row i of the first observation is random."""

    def __init__(self, num_envs, mode="Disabled"):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode} if mode else {}
        self.single_observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.state = np.zeros((num_envs, 3), np.float32)

    def reset(self, *, seed=None, options=None):
        assert seed is None or isinstance(seed, int)
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.state[mask] = self.np_random.uniform(-1, 1, (mask.sum(), 3))
        return self.state, {}

    def step(self, actions):
        self.state *= 0.5
        never = np.zeros(self.num_envs, bool)
        return self.state, np.ones(self.num_envs), never, never, {}


class TreeEnv(gym.Env):
    """Observations are a dict that holds a tuple; actions are a dict."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (1, 4, 4), np.uint8),
            "pair": gym.spaces.Tuple((gym.spaces.Discrete(50), gym.spaces.Box(-1, 1, (2,), np.float64))),
        }
    )
    action_space = gym.spaces.Dict({"arm": gym.spaces.Box(-1, 1, (2,)), "grip": gym.spaces.Discrete(2)})

    def __init__(self):
        self.t = 0
        self.image = np.zeros((1, 4, 4), np.uint8)
        self.last_action = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observe(), 0.0, self.t == 3, False, {}

    def observe(self):
        # The image is the env's own array, written again in every step.
        self.image[:] = self.t
        return {"image": self.image, "pair": (self.t, np.array([self.t, -self.t]) / 10)}


class ScribblingEnv(gym.Env):
    """User code of the kind that works until arrays are shared: writes into what it got and into what it gave."""

    observation_space = gym.spaces.Box(-1000, 1000, (2,), np.float32)
    action_space = gym.spaces.Box(-10, 10, (2,), np.float32)

    def __init__(self):
        self.state = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state *= 0
        return self.state, {}

    def step(self, action):
        action *= 2
        self.state += action
        return self.state, float(self.state.sum()), bool(self.state[0] > 20), False, {}


class ScribblingBatch(BaseEnv):
    """The same as a ``BaseEnv``: hands out its own arrays every time."""

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        n = config.num_envs
        self.meta = EnvMeta("scribbling", ScribblingEnv.observation_space, ScribblingEnv.action_space, n)
        self.state, self.reward = np.zeros((n, 2), np.float32), np.zeros(n, np.float32)
        self.flags = np.zeros(n, np.bool_)

    def reset(self, seed=None, options=None):
        self.state *= 0
        return EnvRet.from_reset(self.state, len(self.state))

    def step(self, response):
        action = response.action_for_env
        action *= 2
        self.state += action
        self.reward[:] = self.state.sum(1)
        return EnvRet(self.state, self.reward, self.flags, self.flags, self.flags)


class BrokenEnv(gym.Env):
    """Fails in the way and at the step of the episode that it is told."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    made = 0

    def __init__(self, how, at=3, row=1):
        self.how, self.at, self.row = how, at, row
        self.index = BrokenEnv.made
        BrokenEnv.made += 1
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if self.how == "reset" and self.index == self.row:
            raise RuntimeError("the motor is off")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        observation, reward = np.zeros(2, np.float32), 1.0
        if self.t == self.at and self.index == self.row:
            if self.how == "raise":
                raise RuntimeError("the motor is off")
            if self.how == "exit":
                raise SystemExit(3)
            reward = {"nan reward": np.nan, "inf reward": -np.inf}.get(self.how, reward)
            observation = {
                "nan observation": np.array([0, np.nan], np.float32),
                "wrong shape": np.zeros(3, np.float32),
                "wrong dtype": np.array(["a", "b"]),
                "no array": "gone",
            }.get(self.how, observation)
        return observation, reward, False, False, {}


def broken(how, **kwargs):
    """Build one broken env; the rows are numbered from 0 in every worker that builds three."""
    env = BrokenEnv(how, **kwargs)
    env.index %= 3
    return env


class RandomEnv(gym.Env):
    """Starts anywhere, stays there for 4 steps."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.start = 0, self.np_random.uniform(size=3)
        return self.start, {}

    def step(self, action):
        self.t += 1
        return self.start, 1.0, self.t == 4, False, {}


class NeverClosed(RandomEnv):
    """Hangs when it is closed."""

    def close(self):
        threading.Event().wait()


class Painter(RandomEnv):
    """Draws its index; ``dependency`` pretends that drawing needs a package."""

    def __init__(self, render_mode=None, dependency=False):
        self.render_mode, self.dependency = render_mode, dependency

    def render(self):
        if self.dependency:
            raise gym.error.DependencyNotInstalled("pygame is not installed")
        return None if self.render_mode is None else np.full((4, 6, 3), 9, np.uint8)


def painters(num_envs, render_mode="rgb_array"):
    return SyncVectorEnv([lambda: Painter(render_mode)] * num_envs)


class NoFinals(NumpyVector):
    """Ends all episodes with each step and says nothing about the last observations."""

    def step(self, actions):
        *result, _ = super().step(actions)
        result[2] = np.ones(self.num_envs, bool)
        return (*result, self.info())

    def info(self):
        return {}


class HalfFinals(NoFinals):
    """Gives the last observation of the first row only."""

    def info(self):
        finals = np.full(self.num_envs, None, object)
        finals[0] = np.zeros(3, np.float32)
        return {"final_obs": finals}


class StartingAtTwo(gym.Env):
    """Actions are 2, 3 and 4; the reward is the action."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(3, start=2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.zeros(1, np.float32), float(action), False, False, {}


class Sized(StartingAtTwo):
    """Its space depends on an argument."""

    def __init__(self, size=1, extra=0):
        self.observation_space = gym.spaces.Box(0, 1, (size,), np.float32)


sizes = itertools.count(1)


def growing():
    """Builds envs that all differ."""
    return Sized(next(sizes))


def nonsense():
    """Builds no env."""
    return 3
