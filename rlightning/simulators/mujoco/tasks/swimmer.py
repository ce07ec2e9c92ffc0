"""Swimmer."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rlightning.simulators.mujoco.tasks.gymnasium_task import (
    GymnasiumTask,
    LocomotionOptions,
    near_start,
    place_on_ground,
    squared,
)
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class SwimmerOptions(LocomotionOptions):
    """Options of Swimmer-v5."""

    xml_file: str = "swimmer.xml"
    frame_skip: int = Field(4, ge=1)
    ctrl_cost_weight: float = 1e-4


class Swimmer(GymnasiumTask[SwimmerOptions]):
    """A chain of three links is to swim along x."""

    Options = SwimmerOptions
    module = "swimmer_v5"
    velocity_names = ("x_velocity", "y_velocity")

    def landmark(self, worlds: Worlds) -> Array:
        return worlds.qpos[:, :2]

    def observe(self, worlds: Worlds) -> Array:
        skipped = 2 * self.options.exclude_current_positions_from_observation
        return np.concatenate((worlds.qpos[:, skipped:], worlds.qvel), axis=1)

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "reward_forward": self.options.forward_reward_weight * worlds.velocity[:, 0],
            "reward_ctrl": -(self.options.ctrl_cost_weight * squared(worlds.command)),
        }

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        return place_on_ground(worlds)

    def start(self, streams: Streams) -> tuple[Array, Array]:
        return near_start(self, self.options.reset_noise_scale, streams, normal_velocities=False)
