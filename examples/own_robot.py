"""A robot of your own: its MuJoCo model and a few functions of all worlds at once, trained by PPO to walk.

    python examples/own_robot.py                            # a million steps, some minutes
    rlightning eval runs/fourleg --video fourleg.mp4

The model, ``robots/fourleg.xml``, is a body on four legs. Masses, friction and motors differ between worlds and between
episodes, and the robot is pushed, harder as training goes on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from rlightning import Config, assemble, launch, register
from rlightning.simulators.mujoco.task import Task, TaskOptions
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class WalkOptions(TaskOptions):
    """What ``env.env_kwargs`` can set, besides the options of all tasks."""

    xml_file: str = str(Path(__file__).resolve().parent / "robots" / "fourleg.xml")
    frame_skip: int = 4  # x 5 ms of physics = 20 ms per action
    scale_actions: bool = True
    speed: float = 0.6
    """Forward velocity to reach in m/s."""


@register("mujoco_task", "fourleg")  # what env.name calls it
class Walk(Task[WalkOptions]):
    """Walk forward at a given speed, upright and without haste."""

    Options = WalkOptions
    reads = ("sensordata",)
    max_episode_steps = 300

    def observe(self, worlds: Worlds) -> Array:
        sensors = (worlds.sensor(name) for name in ("velocity", "turning", "up"))
        return np.concatenate((worlds.qpos[:, 7:], 0.1 * worlds.qvel[:, 6:], *sensors, worlds.action), axis=1)

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        speed, side = worlds.qvel[:, 0], worlds.qvel[:, 1]
        return {
            "reward_speed": np.exp(-(((speed - self.options.speed) / 0.3) ** 2)),
            "reward_straight": -0.3 * np.abs(side) - 0.1 * np.abs(worlds.sensor("turning")[:, 2]),
            "reward_upright": 0.2 * worlds.sensor("up")[:, 2],
            "reward_calm": -0.02 * np.square(worlds.action - worlds.previous_action).sum(axis=1),
        }

    def terminated(self, worlds: Worlds) -> Array:
        return (worlds.sensor("up")[:, 2] < 0.5) | (worlds.qpos[:, 2] < 0.12)

    def start(self, streams: Streams) -> tuple[Array, Array]:
        qpos = np.repeat(self.init_qpos[None], len(streams.generators), axis=0)
        qpos[:, 7:] += streams.uniform(-0.1, 0.1, 8)
        return qpos, streams.uniform(-0.1, 0.1, self.model.nv)


SETTINGS = [
    f"imports=['{__file__}']",  # so that workers, `rlightning eval` and `resume` find the class
    "env.backend=mujoco",
    "env.name=fourleg",
    "env.num_envs=64",
    "env.env_kwargs.randomisation={mass: [0.8, 1.2], friction: [0.6, 1.2], gain: [0.8, 1.2], action_delay: [0, 1]}",
    "env.env_kwargs.randomisation.push={body: torso, force_n: [10.0, 40.0], interval: [60, 120]}",
    "env.env_kwargs.curriculum={follows: steps, steps: 10000}",
    "train.max_epochs=245",  # x 64 envs x 64 steps = 1,003,520 steps
    "train.max_rollout_steps=64",
    "train.batch_size=1024",
    "train.lr=1e-3",
    "log.name=fourleg",
]
"""What differs from the preset, as on the command line."""


def main(config: Config) -> None:
    """Build all parts of the run, and run it; train_ppo.py builds them one by one."""
    with assemble(config) as engine:
        engine.run()


if __name__ == "__main__":
    launch(main, "ppo_ant", [*SETTINGS, *sys.argv[1:]])
