"""CartPole-v1 by stable-baselines3 with the settings that rl-baselines3-zoo publishes, until it is solved.

benchmarks/.venvs/sb3/bin/python benchmarks/sb3_cartpole.py --seed 0
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import numpy as np
import torch
from report import print_line, versions
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule


class UntilSolved(BaseCallback):
    """Ends the training when the mean return of the last 100 episodes reaches the goal."""

    def __init__(self, goal: float) -> None:
        super().__init__()
        self._goal = goal
        self.returns: deque[float] = deque(maxlen=100)
        self.solved = False

    def _on_step(self) -> bool:
        ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self.returns.extend(ended)
        self.solved = len(self.returns) == 100 and float(np.mean(self.returns)) >= self._goal
        return not self.solved


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=475.0)
    parser.add_argument("--max-steps", type=int, default=100_000, help="the schedules end here, as published")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    model = PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=options.seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=LinearSchedule(0.001, 0.0, 1.0),
        clip_range=LinearSchedule(0.2, 0.0, 1.0),
        seed=options.seed,
        device="cpu",
    )
    callback = UntilSolved(options.goal)
    model.learn(options.max_steps, callback=callback)
    print_line(
        {
            "kind": "run",
            "arm": "sb3",
            "seed": options.seed,
            "solved": callback.solved,
            "env_steps": model.num_timesteps,
            "wall_s": round(time.perf_counter() - start, 2),
            "mean_return": round(float(np.mean(callback.returns)), 2),
            "versions": versions(["stable-baselines3", "torch", "numpy", "gymnasium"]),
        }
    )


if __name__ == "__main__":
    main()
