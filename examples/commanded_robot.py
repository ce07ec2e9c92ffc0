"""A robot that follows a velocity command of its own in each world and episode.

    python examples/commanded_robot.py                      # a million steps, some minutes
    rlightning eval runs/commanded --video commanded.mp4

The model is that of ``own_robot.py``. An action of 0 is the pose of the start, and what the robot senses is noisy.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlightning import Config, assemble, launch, register
from rlightning.simulators.mujoco.task import Task, TaskOptions
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class FollowOptions(TaskOptions):
    """What ``env.env_kwargs`` can set, besides the options of all tasks."""

    xml_file: str = str(Path(__file__).resolve().parent / "robots" / "fourleg.xml")
    frame_skip: int = 4  # x 5 ms of physics = 20 ms per action
    fastest: tuple[float, float] = (0.8, 0.5)
    """Largest commands: forward velocity in m/s, and turning rate in rad/s."""


@register("mujoco_task", "fourleg_commanded")
class Follow(Task[FollowOptions]):
    """Move at the commanded forward velocity and turning rate."""

    Options = FollowOptions
    reads = ("sensordata",)
    max_episode_steps = 300

    def variables(self) -> Mapping[str, Any]:
        # Command of forward velocity and turning rate; mean error of the forward velocity in m/s.
        return {"command": np.zeros(2), "error": 0.0}

    def start(self, streams: Streams) -> tuple[Array, Array]:
        slowest = (0.0, -self.options.fastest[1])
        streams.variables["command"][streams.rows] = streams.uniform(slowest, self.options.fastest, 2)
        qpos = np.repeat(self.init_qpos[None], len(streams.rows), axis=0)
        qpos[:, 7:] += streams.uniform(-0.1, 0.1, 8)
        return qpos, streams.uniform(-0.1, 0.1, self.model.nv)

    def update(self, worlds: Worlds, streams: Streams) -> None:
        error = np.abs(worlds.sensor("velocity")[:, 0] - worlds.variables["command"][:, 0])
        worlds.variables["error"] += 0.05 * (error - worlds.variables["error"])

    def observe(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "joints": worlds.qpos[:, 7:],
            "speeds": 0.1 * worlds.qvel[:, 6:],
            "velocity": worlds.sensor("velocity"),
            "turning": worlds.sensor("turning"),
            "up": worlds.sensor("up"),
            "last_action": worlds.action,
            "command": worlds.variables["command"],
        }

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        speed, turning = worlds.variables["command"].T
        calm = np.square(worlds.action - worlds.previous_action).sum(axis=1)
        return {
            "reward_speed": np.exp(-(((worlds.sensor("velocity")[:, 0] - speed) / 0.25) ** 2)),
            "reward_turning": 0.5 * np.exp(-(((worlds.sensor("turning")[:, 2] - turning) / 0.25) ** 2)),
            "reward_calm": -0.005 * calm,
        }

    def terminated(self, worlds: Worlds) -> Array:
        return (worlds.sensor("up")[:, 2] < 0.5) | (worlds.qpos[:, 2] < 0.12)

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        return {"speed_error": worlds.variables["error"]}


SETTINGS = [
    f"imports=['{__file__}']",  # so that workers, `rlightning eval` and `resume` find the class
    "env.backend=mujoco",
    "env.name=fourleg_commanded",
    "env.num_envs=64",
    "env.env_kwargs.action_offset=start",
    "env.env_kwargs.action_scale=0.4",
    "env.env_kwargs.randomisation.observation_noise={joints: 0.01, speeds: 0.05, velocity: 0.05, turning: 0.1}",
    "env.env_kwargs.randomisation.action_delay=[0, 1]",
    "train.max_epochs=245",  # x 64 envs x 64 steps = 1,003,520 steps
    "train.max_rollout_steps=64",
    "train.batch_size=1024",
    "train.lr=1e-3",
    "log.name=commanded",
]
"""What differs from the preset, as on the command line."""


def main(config: Config) -> None:
    """Build all parts of the run, and run it."""
    with assemble(config) as engine:
        engine.run()


if __name__ == "__main__":
    launch(main, "ppo_ant", [*SETTINGS, *sys.argv[1:]])
