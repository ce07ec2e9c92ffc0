"""A trained policy in a robot's loop at a fixed rate: python control_loop.py RUN [SECONDS].

An env of Gymnasium stands for the robot here. Put your own sensors and motors into `Robot`.
"""

import sys
import time

import gymnasium as gym
import numpy as np
import torch

from rlightning import load_policy


class Robot:
    """Reads sensors and commands motors; replace it by your own."""

    def __init__(self, name: str) -> None:
        self._env = gym.make(name)
        self.observation, _ = self._env.reset(seed=0)

    def read(self) -> np.ndarray:
        """Return the newest observation, in the order and units of the training."""
        return self.observation

    def command(self, action: np.ndarray) -> None:
        """Send an action to the motors; it is within the bounds of the action space."""
        self.observation, _, terminated, truncated, _ = self._env.step(action)
        if terminated or truncated:
            self.observation, _ = self._env.reset()


def main(run: str, seconds: float = 2.0) -> None:
    """Act at the rate of the training, and say how much of each period was left."""
    torch.set_num_threads(1)  # a small network is quickest on one thread
    policy = load_policy(run)
    period = 1.0 / (policy.meta.rate_hz or 50.0)
    robot = Robot(policy.meta.name)
    policy.act(robot.read())  # the first call takes longer than the others
    policy.reset()
    spent = []
    due = time.perf_counter()
    for _ in range(round(seconds / period)):
        begun = time.perf_counter()
        robot.command(policy.act(robot.read()))
        spent.append(time.perf_counter() - begun)
        due += period  # from the start, so that lateness does not add up
        time.sleep(max(0.0, due - time.perf_counter()))
    late = sum(one > period for one in spent)
    print(f"{len(spent)} steps at {1 / period:.0f} Hz: median {1e3 * np.median(spent):.2f} ms, {late} late")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
