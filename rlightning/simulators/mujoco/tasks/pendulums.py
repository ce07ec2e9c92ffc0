"""Poles on carts: InvertedPendulum and InvertedDoublePendulum."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rlightning.simulators.mujoco.tasks.gymnasium_task import GymnasiumTask, NoisyOptions, near_start
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class InvertedPendulumOptions(NoisyOptions):
    """Options of InvertedPendulum-v5."""

    xml_file: str = "inverted_pendulum.xml"
    frame_skip: int = Field(2, ge=1)
    reset_noise_scale: float = Field(0.01, ge=0)


class InvertedPendulum(GymnasiumTask[InvertedPendulumOptions]):
    """A pole is to be kept upright."""

    Options = InvertedPendulumOptions
    module = "inverted_pendulum_v5"

    def observe(self, worlds: Worlds) -> Array:
        return np.concatenate((worlds.qpos, worlds.qvel), axis=1)

    def terminated(self, worlds: Worlds) -> Array:
        observation = self.observe(worlds)
        return ~np.isfinite(observation).all(axis=1) | (np.abs(observation[:, 1]) > 0.2)

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        return {"reward_survive": (~worlds.terminated).astype(np.float64)}

    def start(self, streams: Streams) -> tuple[Array, Array]:
        return near_start(self, self.options.reset_noise_scale, streams, normal_velocities=False)


class InvertedDoublePendulumOptions(NoisyOptions):
    """Options of InvertedDoublePendulum-v5."""

    xml_file: str = "inverted_double_pendulum.xml"
    frame_skip: int = Field(5, ge=1)
    healthy_reward: float = 10.0
    """Reward of each step that does not end the episode."""


class InvertedDoublePendulum(GymnasiumTask[InvertedDoublePendulumOptions]):
    """Two poles on top of each other are to be kept upright."""

    Options = InvertedDoublePendulumOptions
    module = "inverted_double_pendulum_v5"
    reads = ("site_xpos", "qfrc_constraint")

    def observe(self, worlds: Worlds) -> Array:
        angles = worlds.qpos[:, 1:]
        return np.concatenate(
            (
                worlds.qpos[:, :1],
                np.sin(angles),
                np.cos(angles),
                np.clip(worlds.qvel, -10, 10),
                np.clip(worlds.read["qfrc_constraint"][:, :1], -10, 10),
            ),
            axis=1,
        )

    def terminated(self, worlds: Worlds) -> Array:
        fallen: Array = worlds.read["site_xpos"][:, 0, 2] <= 1
        return fallen

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        tip, qvel = worlds.read["site_xpos"][:, 0], worlds.qvel
        return {
            "reward_survive": self.options.healthy_reward * ~worlds.terminated,
            "distance_penalty": -(0.01 * tip[:, 0] ** 2 + (tip[:, 2] - 2) ** 2),
            "velocity_penalty": -(1e-3 * qvel[:, 1] ** 2 + 5e-3 * qvel[:, 2] ** 2),
        }

    def start(self, streams: Streams) -> tuple[Array, Array]:
        return near_start(self, self.options.reset_noise_scale, streams, normal_velocities=True)
