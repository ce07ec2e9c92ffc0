"""Ant."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from rlightning.simulators.mujoco.randomisation import find_body
from rlightning.simulators.mujoco.task import Range
from rlightning.simulators.mujoco.tasks.gymnasium_task import (
    GymnasiumTask,
    LocomotionOptions,
    near_start,
    place_on_ground,
    squared,
)
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class AntOptions(LocomotionOptions):
    """Options of Ant-v5."""

    xml_file: str = "ant.xml"
    frame_skip: int = Field(5, ge=1)
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    """Weight of the squared contact forces."""
    healthy_reward: float = 1.0
    """Reward of each step in which the robot is healthy."""
    main_body: int | str = 1
    """Name or number of the body whose velocity is rewarded."""
    terminate_when_unhealthy: bool = True
    """End the episode when it is not healthy."""
    healthy_z_range: Range = (0.2, 1.0)
    """Heights at which it is healthy."""
    contact_force_range: Range = (-1.0, 1.0)
    """Contact forces are cut to this range."""
    include_cfrc_ext_in_observation: bool = True
    """Observe the contact forces."""


class Ant(GymnasiumTask[AntOptions]):
    """A robot of four legs is to walk along x."""

    Options = AntOptions
    module = "ant_v5"
    reads = ("xpos", "cfrc_ext")
    velocity_names = ("x_velocity", "y_velocity")

    def __init__(self, options: AntOptions, model: Any) -> None:
        super().__init__(options, model)
        self._main_body = find_body(model, options.main_body, "env.env_kwargs.main_body")

    def landmark(self, worlds: Worlds) -> Array:
        return worlds.read["xpos"][:, self._main_body, :2]

    def contact_forces(self, worlds: Worlds) -> Array:
        """Return the contact forces, cut to their range, [N, nbody, 6]."""
        return np.clip(worlds.read["cfrc_ext"], *self.options.contact_force_range)

    def observe(self, worlds: Worlds) -> Array:
        skipped = 2 * self.options.exclude_current_positions_from_observation
        parts = [worlds.qpos[:, skipped:], worlds.qvel]
        if self.options.include_cfrc_ext_in_observation:
            parts.append(self.contact_forces(worlds)[:, 1:].reshape(worlds.num_envs, -1))
        return np.concatenate(parts, axis=1)

    def is_healthy(self, worlds: Worlds) -> Array:
        """Return where the state is finite and the height in its range, [N] bool."""
        low, high = self.options.healthy_z_range
        is_finite = np.isfinite(worlds.qpos).all(axis=1) & np.isfinite(worlds.qvel).all(axis=1)
        z = worlds.qpos[:, 2]
        healthy: Array = is_finite & (low <= z) & (z <= high)
        return healthy

    def terminated(self, worlds: Worlds) -> Array:
        return ~self.is_healthy(worlds) & self.options.terminate_when_unhealthy

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        options = self.options
        return {
            "reward_forward": worlds.velocity[:, 0] * options.forward_reward_weight,
            "reward_survive": self.is_healthy(worlds) * options.healthy_reward,
            "reward_ctrl": -(options.ctrl_cost_weight * squared(worlds.command)),
            "reward_contact": -(options.contact_cost_weight * squared(self.contact_forces(worlds))),
        }

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        return place_on_ground(worlds)

    def start(self, streams: Streams) -> tuple[Array, Array]:
        return near_start(self, self.options.reset_noise_scale, streams, normal_velocities=True)
