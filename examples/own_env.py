"""An env of your own, written for many at once in numpy, and trained by PPO in half a minute.

    python examples/own_env.py
    python examples/own_env.py env.num_envs=256 cluster=ray env.num_workers=2

Add a simulator or a robot in the same way: N sub-envs are reset and stepped together, batch first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlightning import BaseEnv, Config, EnvMeta, EnvRet, PolicyResponse, assemble, launch, register
from rlightning.config import EnvConfig

STEPS = 40
"""Steps of an episode."""


@register("simulator", "reach")  # what env.backend calls it
class Reach(BaseEnv):
    """N points in the plane; each must reach its target, and the reward is minus the distance to it.

    A point observes the position of its target relative to itself, [2], and chooses a step of at most 0.1 per axis.
    """

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        self.meta = EnvMeta(
            name="reach",
            observation_space=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
            action_space=gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
            num_envs=config.num_envs,
            max_episode_steps=STEPS,
        )
        self.way = np.zeros((config.num_envs, 2), np.float32)
        self.age = np.zeros(config.num_envs, np.int64)
        self.rng = np.random.default_rng()

    def reset(self, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None) -> EnvRet:
        """Start everywhere anew; a seed per sub-env comes with the first reset."""
        if seed is not None:
            self.rng = np.random.default_rng(list(seed))
        self._begin(np.ones(self.meta.num_envs, np.bool_))
        return EnvRet.from_reset(self.way, self.meta.num_envs)

    def step(self, response: PolicyResponse) -> EnvRet:
        """Move all points. Rows whose time is up start their next episode at once."""
        self.way -= 0.1 * response.action_for_env
        self.age += 1
        reward = -np.linalg.norm(self.way, axis=1)
        # A time limit is a truncation: the state after it has a value, so the true last observation is kept.
        truncated = self.age == STEPS
        final = self.way.copy() if truncated.any() else None
        self._begin(truncated)
        never = np.zeros_like(truncated)
        # The worker copies these arrays, so that the next step may use them again.
        return EnvRet(self.way, reward, terminated=never, truncated=truncated, is_reset=never, final_observation=final)

    def _begin(self, rows: np.ndarray[Any, Any]) -> None:
        self.way[rows] = self.rng.uniform(-1.0, 1.0, (np.count_nonzero(rows), 2))
        self.age[rows] = 0


SETTINGS = [
    f"imports=['{__file__}']",  # so that workers, `rlightning eval` and `resume` find the class
    "env.backend=reach",
    "env.name=reach",
    "env.num_envs=32",
    "train.max_rollout_steps=40",
    "train.max_epochs=30",  # x 32 envs x 40 steps = 38,400 steps
    "train.batch_size=256",
    "train.lr=3e-3",
    "train.eval_interval=0",
    "train.save_interval=0",
]
"""What differs from the preset, as on the command line."""


def main(config: Config) -> None:
    """Build all parts of the run, and run it; train_ppo.py builds them one by one."""
    with assemble(config) as engine:
        engine.run()


if __name__ == "__main__":
    launch(main, "ppo_pendulum", [*SETTINGS, *sys.argv[1:]])
