"""What Gymnasium's tasks share: starts with noise, the cost of acting, distances, cameras."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium as gym
import numpy as np
from pydantic import Field

from rlightning.simulators.mujoco.task import Task, TaskOptions
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds

OptionsT = TypeVar("OptionsT", bound=TaskOptions)


class GymnasiumTask(Task[OptionsT], Generic[OptionsT]):
    """A task that Gymnasium has too."""

    module: ClassVar[str]
    """Gymnasium's module of it, which has the attributes of its camera."""

    @classmethod
    def time_limit(cls, name: str) -> int | None:
        return gym.spec(name).max_episode_steps

    def camera(self) -> Mapping[str, Any] | None:
        if self.options.default_camera_config is not None:
            return self.options.default_camera_config
        module = importlib.import_module(f"gymnasium.envs.mujoco.{self.module}")
        config: Mapping[str, Any] | None = getattr(module, "DEFAULT_CAMERA_CONFIG", None)
        return config


class NoisyOptions(TaskOptions):
    """Options of tasks that start near the model's own position."""

    reset_noise_scale: float = Field(0.1, ge=0)
    """Largest noise of positions (and velocities) at the start."""


class LocomotionOptions(NoisyOptions):
    """Options of tasks that are to move forward."""

    forward_reward_weight: float = 1.0
    """Weight of the velocity along x."""
    ctrl_cost_weight: float = 0.1
    """Weight of the squared controls."""
    exclude_current_positions_from_observation: bool = True
    """Leave out where the robot is on the ground."""


def near_start(task: Task[Any], scale: float, streams: Streams, *, normal_velocities: bool) -> tuple[Array, Array]:
    """Draw starts around the model's own position.

    Args:
        task: Knows the position.
        scale: Bounds of the even noise; deviation of the normal noise.
        streams: The K worlds' generators.
        normal_velocities: Whether the noise of velocities is normal; otherwise it is even, as that of positions.

    Returns:
        Positions [K, nq] and velocities [K, nv].
    """
    model = task.model
    qpos = task.init_qpos + streams.uniform(-scale, scale, model.nq)
    if normal_velocities:
        return qpos, task.init_qvel + scale * streams.standard_normal(model.nv)
    return qpos, task.init_qvel + streams.uniform(-scale, scale, model.nv)


def squared(rows: Array) -> Array:
    """Sum the squares of each row, [N, ...] -> [N]."""
    sums: Array = np.square(rows.reshape(len(rows), -1)).sum(axis=1)
    return sums


def distance(rows: Array) -> Array:
    """Return the length of each row, [N, D] -> [N]."""
    lengths: Array = np.sqrt(squared(rows))
    return lengths


def place_on_ground(worlds: Worlds) -> dict[str, Array]:
    """Describe where a robot with a root in x and y is."""
    qpos = worlds.qpos
    return {"x_position": qpos[:, 0], "y_position": qpos[:, 1], "distance_from_origin": distance(qpos[:, :2])}
