"""Small real envs, importable by worker processes, which need no torch for them."""

from __future__ import annotations

import random
import time

import gymnasium as gym
import numpy as np

from rlightning.config import EnvConfig
from rlightning.env.base_env import BaseEnv
from rlightning.registry import register
from rlightning.types import EnvMeta, EnvRet

OPEN = []
"""Envs of this process that were built and not closed."""


@register("simulator", "uneven")
class UnevenEnv(BaseEnv):
    """Row i has episodes of ``lengths[i]`` steps (one length stands for all rows); every step is worth ``reward``.

    The observation is N(mean, 1) per feature. ``fail_at`` raises in that step, ``sleep_s`` makes every step slow.
    """

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        options = {"lengths": [4], "reward": 1.0, "mean": 0.0, "fail_at": 0, "sleep_s": 0.0, "stores": True}
        options |= config.env_kwargs
        n = config.num_envs
        self.meta = EnvMeta(config.name, gym.spaces.Box(-1e6, 1e6, (3,)), gym.spaces.Discrete(2), n)
        self.lengths = np.resize(np.array(options["lengths"]), n)
        self.reward, self.mean, self.stores = options["reward"], options["mean"], options["stores"]
        self.fail_at, self.sleep_s = options["fail_at"], options["sleep_s"]
        self.t, self.steps = np.zeros(n, np.int64), 0
        self.rng = np.random.default_rng(0)
        OPEN.append(id(self))

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(list(seed))
        self.t[:] = 0
        return EnvRet.from_reset(self.observe(), len(self.t))

    def step(self, response):
        self.steps += 1
        if self.steps == self.fail_at:
            raise OSError("the motor is off")
        time.sleep(self.sleep_s)
        self.t += 1
        over, never = self.t == self.lengths, np.zeros(len(self.t), np.bool_)
        final = self.observe() if over.any() else None
        self.t[over] = 0
        return EnvRet(self.observe(), np.full(len(self.t), self.reward), never, over, never, final)

    def observe(self):
        return self.rng.normal(self.mean, 1.0, (len(self.t), 3)).astype(np.float32)

    def get_state(self):
        return super().get_state() if self.stores else None

    def close(self):
        if id(self) in OPEN:
            OPEN.remove(id(self))


@register("simulator", "step_count")
class StepCountEnv(UnevenEnv):
    """Shows the step of the episode, and the row."""

    def observe(self):
        return np.stack([self.t, np.arange(len(self.t)), self.t], axis=1).astype(np.float32)


@register("simulator", "dice")
class DiceEnv(UnevenEnv):
    """Draws from the global generators of Python and numpy, as many envs do that have no generator of their own."""

    def observe(self):
        self.reward = random.random()
        return np.random.normal(0.0, 1.0, (len(self.t), 3)).astype(np.float32)  # noqa: NPY002


@register("simulator", "clock")
class ClockEnv(UnevenEnv):
    """Its observation is the time of the step, in seconds since ``env_kwargs.start``."""

    def observe(self):
        return np.full((len(self.t), 3), time.time() - self.config.env_kwargs["start"], np.float32)
