"""Robots in a plane: HalfCheetah, Hopper, Walker2d."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from rlightning.simulators.mujoco.task import Range
from rlightning.simulators.mujoco.tasks.gymnasium_task import GymnasiumTask, LocomotionOptions, near_start, squared
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class HalfCheetahOptions(LocomotionOptions):
    """Options of HalfCheetah-v5."""

    xml_file: str = "half_cheetah.xml"
    frame_skip: int = Field(5, ge=1)


class HalfCheetah(GymnasiumTask[HalfCheetahOptions]):
    """A cheetah of two legs is to run; its episodes never end by themselves."""

    Options = HalfCheetahOptions
    module = "half_cheetah_v5"
    velocity_names = ("x_velocity",)

    def landmark(self, worlds: Worlds) -> Array:
        return worlds.qpos[:, :1]

    def observe(self, worlds: Worlds) -> Array:
        skipped = int(self.options.exclude_current_positions_from_observation)
        return np.concatenate((worlds.qpos[:, skipped:], worlds.qvel), axis=1)

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "reward_forward": self.options.forward_reward_weight * worlds.velocity[:, 0],
            "reward_ctrl": -(self.options.ctrl_cost_weight * squared(worlds.command)),
        }

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        return {"x_position": worlds.qpos[:, 0]}

    def start(self, streams: Streams) -> tuple[Array, Array]:
        return near_start(self, self.options.reset_noise_scale, streams, normal_velocities=True)


class UprightOptions(LocomotionOptions):
    """Options of robots that fall."""

    frame_skip: int = Field(4, ge=1)
    ctrl_cost_weight: float = 1e-3
    reset_noise_scale: float = Field(5e-3, ge=0)
    healthy_reward: float = 1.0
    """Reward of each step in which the robot is healthy."""
    terminate_when_unhealthy: bool = True
    """End the episode when it is not."""
    healthy_z_range: Range
    """Heights at which it is healthy."""
    healthy_angle_range: Range
    """Angles of the torso at which it is healthy."""


class Walker2dOptions(UprightOptions):
    """Options of Walker2d-v5."""

    xml_file: str = "walker2d_v5.xml"
    healthy_z_range: Range = (0.8, 2.0)
    healthy_angle_range: Range = (-1.0, 1.0)


class HopperOptions(UprightOptions):
    """Options of Hopper-v5."""

    xml_file: str = "hopper.xml"
    healthy_state_range: Range = (-100.0, 100.0)
    """Values of all positions but the first two, and of all velocities, at which it is healthy."""
    healthy_z_range: Range = (0.7, float("inf"))
    healthy_angle_range: Range = (-0.2, 0.2)


class Upright(GymnasiumTask[Any]):
    """A robot in a plane that is to move forward and not to fall."""

    velocity_names = ("x_velocity",)

    def landmark(self, worlds: Worlds) -> Array:
        return worlds.qpos[:, :1]

    def observe(self, worlds: Worlds) -> Array:
        skipped = int(self.options.exclude_current_positions_from_observation)
        return np.concatenate((worlds.qpos[:, skipped:], np.clip(worlds.qvel, -10, 10)), axis=1)

    def is_healthy(self, worlds: Worlds) -> Array:
        """Return where height and angle are in their ranges, [N] bool."""
        z, angle = worlds.qpos[:, 1], worlds.qpos[:, 2]
        return _inside(z, self.options.healthy_z_range) & _inside(angle, self.options.healthy_angle_range)

    def terminated(self, worlds: Worlds) -> Array:
        fallen: Array = ~self.is_healthy(worlds) & self.options.terminate_when_unhealthy
        return fallen

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "reward_forward": self.options.forward_reward_weight * worlds.velocity[:, 0],
            "reward_survive": self.is_healthy(worlds) * self.options.healthy_reward,
            "reward_ctrl": -(self.options.ctrl_cost_weight * squared(worlds.command)),
        }

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "x_position": worlds.qpos[:, 0],
            "z_distance_from_origin": worlds.qpos[:, 1] - self.init_qpos[1],
        }

    def start(self, streams: Streams) -> tuple[Array, Array]:
        return near_start(self, self.options.reset_noise_scale, streams, normal_velocities=False)


class Walker2d(Upright):
    """A walker of two legs."""

    Options = Walker2dOptions
    module = "walker2d_v5"


class Hopper(Upright):
    """A hopper of one leg."""

    Options = HopperOptions
    module = "hopper_v5"

    def is_healthy(self, worlds: Worlds) -> Array:
        state_range = self.options.healthy_state_range
        is_bounded = _inside(worlds.qpos[:, 2:], state_range).all(axis=1) & _inside(worlds.qvel, state_range).all(
            axis=1
        )
        return super().is_healthy(worlds) & is_bounded


def _inside(values: Array, bounds: Range) -> Array:
    return (bounds[0] < values) & (values < bounds[1])
