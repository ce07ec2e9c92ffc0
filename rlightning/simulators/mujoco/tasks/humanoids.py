"""Humanoid and HumanoidStandup."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import Field

from rlightning.simulators.mujoco.task import Range
from rlightning.simulators.mujoco.tasks.gymnasium_task import (
    GymnasiumTask,
    NoisyOptions,
    distance,
    near_start,
    squared,
)
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class BodyOptions(NoisyOptions):
    """Options of both tasks of the humanoid."""

    frame_skip: int = Field(5, ge=1)
    reset_noise_scale: float = Field(1e-2, ge=0)
    ctrl_cost_weight: float = 0.1
    """Weight of the squared controls."""
    exclude_current_positions_from_observation: bool = True
    """Leave out where the robot is on the ground."""
    include_cinert_in_observation: bool = True
    """Observe the inertias of all bodies."""
    include_cvel_in_observation: bool = True
    """Observe the velocities of all bodies."""
    include_qfrc_actuator_in_observation: bool = True
    """Observe the forces of the actuators."""
    include_cfrc_ext_in_observation: bool = True
    """Observe the contact forces."""


OptionsT = TypeVar("OptionsT", bound=BodyOptions)


class _Body(GymnasiumTask[OptionsT], Generic[OptionsT]):
    """What both tasks observe, and how they start."""

    @classmethod
    def fields(cls, options: BodyOptions) -> tuple[str, ...]:
        wanted = {name for name in cls.reads if getattr(options, f"include_{name}_in_observation", True)}
        # Contact forces are part of the reward, too.
        return tuple(name for name in cls.reads if name in wanted | {"cfrc_ext"})

    def observe(self, worlds: Worlds) -> Array:
        options, read, n = self.options, worlds.read, worlds.num_envs
        parts = [worlds.qpos[:, 2 * options.exclude_current_positions_from_observation :], worlds.qvel]
        # Neither the world itself, body 0, nor forces on the root, which no actuator moves.
        if options.include_cinert_in_observation:
            parts.append(read["cinert"][:, 1:].reshape(n, -1))
        if options.include_cvel_in_observation:
            parts.append(read["cvel"][:, 1:].reshape(n, -1))
        if options.include_qfrc_actuator_in_observation:
            parts.append(read["qfrc_actuator"][:, 6:])
        if options.include_cfrc_ext_in_observation:
            parts.append(read["cfrc_ext"][:, 1:].reshape(n, -1))
        return np.concatenate(parts, axis=1)

    def control_cost(self, worlds: Worlds) -> Array:
        """Cost of the controls, [N]."""
        return self.options.ctrl_cost_weight * squared(worlds.ctrl)

    def start(self, streams: Streams) -> tuple[Array, Array]:
        return near_start(self, self.options.reset_noise_scale, streams, normal_velocities=False)


class HumanoidOptions(BodyOptions):
    """Options of Humanoid-v5."""

    xml_file: str = "humanoid.xml"
    forward_reward_weight: float = 1.25
    """Weight of the velocity along x."""
    contact_cost_weight: float = 5e-7
    """Weight of the squared contact forces."""
    contact_cost_range: Range = (float("-inf"), 10.0)
    """That cost is cut to this range."""
    healthy_reward: float = 5.0
    """Reward of each step in which the robot is healthy."""
    terminate_when_unhealthy: bool = True
    """End the episode when it is not healthy."""
    healthy_z_range: Range = (1.0, 2.0)
    """Heights at which it is healthy."""


class Humanoid(_Body[HumanoidOptions]):
    """A humanoid is to walk along x and not to fall."""

    Options = HumanoidOptions
    module = "humanoid_v5"
    reads = ("xipos", "ten_length", "ten_velocity", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")
    velocity_names = ("x_velocity", "y_velocity")

    def __init__(self, options: HumanoidOptions, model: Any) -> None:
        super().__init__(options, model)
        # Factors of mass are the same for all bodies, so that they do not matter for the centre.
        self._shares: Array = model.body_mass / model.body_mass.sum()

    def landmark(self, worlds: Worlds) -> Array:
        centre: Array = self._shares @ worlds.read["xipos"][:, :, :2]
        return centre

    def is_healthy(self, worlds: Worlds) -> Array:
        """Return where the height is in its range, [N] bool."""
        low, high = self.options.healthy_z_range
        z = worlds.qpos[:, 2]
        healthy: Array = (low < z) & (z < high)
        return healthy

    def terminated(self, worlds: Worlds) -> Array:
        return ~self.is_healthy(worlds) & self.options.terminate_when_unhealthy

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        options = self.options
        contact_cost = options.contact_cost_weight * squared(worlds.read["cfrc_ext"])
        return {
            "reward_forward": options.forward_reward_weight * worlds.velocity[:, 0],
            "reward_survive": self.is_healthy(worlds) * options.healthy_reward,
            "reward_ctrl": -self.control_cost(worlds),
            "reward_contact": -np.clip(contact_cost, *options.contact_cost_range),
        }

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "x_position": worlds.qpos[:, 0],
            "y_position": worlds.qpos[:, 1],
            "tendon_length": worlds.read["ten_length"],
            "tendon_velocity": worlds.read["ten_velocity"],
            "distance_from_origin": distance(worlds.qpos[:, :2]),
        }


class HumanoidStandupOptions(BodyOptions):
    """Options of HumanoidStandup-v5."""

    xml_file: str = "humanoidstandup.xml"
    uph_cost_weight: float = 1.0
    """No effect, as in Gymnasium."""
    impact_cost_weight: float = 0.5e-6
    """Weight of the squared contact forces."""
    impact_cost_range: Range = (float("-inf"), 10.0)
    """That cost is cut to this range."""


class HumanoidStandup(_Body[HumanoidStandupOptions]):
    """A humanoid that lies is to stand up; its episodes never end by themselves."""

    Options = HumanoidStandupOptions
    module = "humanoidstandup_v5"
    reads = ("ten_length", "ten_velocity", "cinert", "cvel", "qfrc_actuator", "cfrc_ext")

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        impact_cost = self.options.impact_cost_weight * squared(worlds.read["cfrc_ext"])
        return {
            "reward_linup": worlds.qpos[:, 2] / self.model.opt.timestep,
            "reward_quadctrl": -self.control_cost(worlds),
            "reward_impact": -np.clip(impact_cost, *self.options.impact_cost_range),
            # Gymnasium adds it to the reward and not to its info.
            "reward_constant": np.ones(worlds.num_envs),
        }

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "x_position": worlds.qpos[:, 0],
            "y_position": worlds.qpos[:, 1],
            "z_distance_from_origin": worlds.qpos[:, 2] - self.init_qpos[2],
            "tendon_length": worlds.read["ten_length"],
            "tendon_velocity": worlds.read["ten_velocity"],
        }
