"""A pixel task without dependencies: a paddle catches falling balls. Importing this module registers the task."""

from __future__ import annotations

from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

CATCH_ID: Final = "rlightning/Catch-v0"

Image = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[Any]]


class CatchVectorEnv(gym.vector.VectorEnv[Image, Numbers, Numbers]):
    """Balls fall in turn, drift sideways and bounce off the walls; a paddle moves along the bottom.

    Observation: an image [1, size, size] uint8 of 0 (background) and 255 (the ball, 3x3, and the paddle, 7 wide).
    Action: 0 moves the paddle left by 2 columns, 1 does not move it, 2 moves it right by 2 columns.
    Reward: +1 when a ball lands on the paddle, -1 when it lands beside it, otherwise 0.
    An episode ends after ``balls`` balls, so that its return is in [-balls, balls]. With the defaults it lasts 160
    steps; a random policy returns about -5, and a policy that follows the ball returns 8.

    Args:
        num_envs: N.
        size: Height and width of the image in pixels, at least 16.
        balls: Balls per episode.
        max_episode_steps: Steps after which an episode is truncated; None means no limit.
        render_mode: "rgb_array" or None.
    """

    metadata = {  # noqa: RUF012 - as Gymnasium declares it
        "render_modes": ["rgb_array"],
        "render_fps": 30,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    FALL: Final = 2
    """Rows that a ball falls per step."""
    MAX_DRIFT: Final = 1.5
    """Largest number of columns that a ball moves sideways per step; less than the paddle's speed."""
    SPEED: Final = 2
    """Columns that the paddle moves per step."""
    REACH: Final = 3
    """Columns of the paddle on either side of its centre."""

    def __init__(
        self,
        num_envs: int = 1,
        size: int = 42,
        balls: int = 8,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if size < 16 or balls < 1:
            raise ValueError(f"size must be at least 16 and balls at least 1, got {size} and {balls}")
        self.num_envs, self.size, self.balls, self.render_mode = num_envs, size, balls, render_mode
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = gym.spaces.Box(0, 255, (1, size, size), np.uint8)
        self.single_action_space = gym.spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._x, self._drift = np.zeros(num_envs), np.zeros(num_envs)
        self._y, self._paddle, self._fallen, self._age = (np.zeros(num_envs, np.int64) for _ in range(4))
        self._image = np.zeros((num_envs, size * size), np.uint8)
        offsets = np.arange(-1, 2)
        self._ball_pixels = (offsets[:, None] * size + offsets).ravel()
        bar = np.arange(-self.REACH, self.REACH + 1)
        self._paddle_pixels = np.concatenate([(size - 2) * size + bar, (size - 1) * size + bar])
        self._row = np.arange(num_envs)[:, None]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Image, dict[str, Any]]:
        super().reset(seed=seed)
        self._start_episodes(np.arange(self.num_envs))
        return self._draw(), {}

    def step(self, actions: Numbers) -> tuple[Image, Numbers, Numbers, Numbers, dict[str, Any]]:
        margin, last_row = self.REACH, self.size - 2
        self._paddle = np.clip(self._paddle + self.SPEED * (actions - 1), margin, self.size - 1 - margin)
        self._x += self._drift
        # A ball is three columns wide, so its centre stays one column away from the walls.
        over, under = self._x > self.size - 2, self._x < 1
        self._drift = np.where(over | under, -self._drift, self._drift)
        self._x = np.where(over, 2 * (self.size - 2) - self._x, np.where(under, 2 - self._x, self._x))
        self._y += self.FALL
        self._age += 1
        landed = self._y >= last_row
        reward = np.zeros(self.num_envs, np.float32)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = (
            terminated.copy() if self.max_episode_steps is None else np.asarray(self._age >= self.max_episode_steps)
        )
        if landed.any():
            # The ball is caught if any of its three columns touches the paddle.
            caught = np.abs(np.rint(self._x) - self._paddle) <= margin + 1
            reward[landed] = np.where(caught[landed], 1.0, -1.0)
            self._fallen[landed] += 1
            terminated = landed & (self._fallen >= self.balls)
        self._y = np.minimum(self._y, last_row)
        ended = np.flatnonzero(terminated | truncated)
        info: dict[str, Any] = {"final_obs": self._draw()} if ended.size else {}
        if landed.any():
            self._drop(np.flatnonzero(landed))
        if ended.size:
            self._start_episodes(ended)
        return self._draw(), reward, terminated, truncated, info

    def render(self) -> tuple[Image, ...] | None:
        """Render all rows, enlarged: N images [8 size, 8 size, 3]."""
        if self.render_mode is None:
            return None
        frames = self._draw().reshape(self.num_envs, self.size, self.size, 1)
        return tuple(frames.repeat(8, 1).repeat(8, 2).repeat(3, 3))

    def _start_episodes(self, rows: Numbers) -> None:
        self._paddle[rows] = self.np_random.integers(self.REACH, self.size - self.REACH, rows.size)
        self._fallen[rows] = 0
        self._age[rows] = 0
        self._drop(rows)

    def _drop(self, rows: Numbers) -> None:
        self._y[rows] = 1
        self._x[rows] = self.np_random.integers(1, self.size - 1, rows.size)
        self._drift[rows] = self.np_random.uniform(-self.MAX_DRIFT, self.MAX_DRIFT, rows.size)

    def _draw(self) -> Image:
        self._image[:] = 0
        ball = self._y * self.size + np.rint(self._x).astype(np.int64)
        self._image[self._row, ball[:, None] + self._ball_pixels] = 255
        self._image[self._row, self._paddle[:, None] + self._paddle_pixels] = 255
        return self._image.reshape(self.num_envs, 1, self.size, self.size).copy()


if CATCH_ID not in gym.registry:
    gym.register(CATCH_ID, vector_entry_point="rlightning.simulators.catch:CatchVectorEnv")
