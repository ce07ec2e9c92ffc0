"""Arms: Reacher and Pusher."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from rlightning.simulators.mujoco.randomisation import find_body
from rlightning.simulators.mujoco.task import TaskOptions
from rlightning.simulators.mujoco.tasks.gymnasium_task import GymnasiumTask, distance, squared
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds


class ReacherOptions(TaskOptions):
    """Options of Reacher-v5."""

    xml_file: str = "reacher.xml"
    frame_skip: int = Field(2, ge=1)
    reward_dist_weight: float = 1.0
    """Weight of the distance of the fingertip from the target."""
    reward_control_weight: float = 1.0
    """Weight of the squared actions."""


class Reacher(GymnasiumTask[ReacherOptions]):
    """An arm of two joints is to reach a target in the plane."""

    Options = ReacherOptions
    module = "reacher_v5"
    reads = ("xpos",)

    def __init__(self, options: ReacherOptions, model: Any) -> None:
        super().__init__(options, model)
        self._fingertip, self._target = (_body(model, name) for name in ("fingertip", "target"))

    def way(self, worlds: Worlds) -> Array:
        """Return the way from the target to the fingertip, [N, 3]."""
        xpos = worlds.read["xpos"]
        return xpos[:, self._fingertip] - xpos[:, self._target]

    def observe(self, worlds: Worlds) -> Array:
        qpos, way = worlds.qpos, self.way(worlds)
        angles = qpos[:, :2]
        return np.concatenate((np.cos(angles), np.sin(angles), qpos[:, 2:], worlds.qvel[:, :2], way[:, :2]), axis=1)

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        return {
            "reward_dist": -distance(self.way(worlds)) * self.options.reward_dist_weight,
            "reward_ctrl": -squared(worlds.command) * self.options.reward_control_weight,
        }

    def start(self, streams: Streams) -> tuple[Array, Array]:
        qpos = streams.uniform(-0.1, 0.1, self.model.nq) + self.init_qpos
        qpos[:, -2:] = streams.each(_draw_target)
        qvel = self.init_qvel + streams.uniform(-0.005, 0.005, self.model.nv)
        qvel[:, -2:] = 0.0
        return qpos, qvel


def _draw_target(rng: np.random.Generator) -> Array:
    """Draw from a disc of radius 0.2."""
    while True:
        target = rng.uniform(-0.2, 0.2, 2)
        if np.linalg.norm(target) < 0.2:
            return target


class PusherOptions(TaskOptions):
    """Options of Pusher-v5."""

    xml_file: str = "pusher_v5.xml"
    frame_skip: int = Field(5, ge=1)
    reward_near_weight: float = 0.5
    """Weight of the distance of the fingertip from the object."""
    reward_dist_weight: float = 1.0
    """Weight of the distance of the object from the goal."""
    reward_control_weight: float = 0.1
    """Weight of the squared actions."""


class Pusher(GymnasiumTask[PusherOptions]):
    """An arm of seven joints is to push an object to a goal."""

    Options = PusherOptions
    module = "pusher_v5"
    reads = ("xpos",)

    def __init__(self, options: PusherOptions, model: Any) -> None:
        super().__init__(options, model)
        self._tip, self._object, self._goal = (_body(model, name) for name in ("tips_arm", "object", "goal"))

    def observe(self, worlds: Worlds) -> Array:
        xpos = worlds.read["xpos"]
        bodies = (xpos[:, self._tip], xpos[:, self._object], xpos[:, self._goal])
        return np.concatenate((worlds.qpos[:, :7], worlds.qvel[:, :7], *bodies), axis=1)

    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        options, xpos = self.options, worlds.read["xpos"]
        thing = xpos[:, self._object]
        return {
            "reward_dist": -distance(thing - xpos[:, self._goal]) * options.reward_dist_weight,
            "reward_ctrl": -squared(worlds.command) * options.reward_control_weight,
            "reward_near": -distance(thing - xpos[:, self._tip]) * options.reward_near_weight,
        }

    def start(self, streams: Streams) -> tuple[Array, Array]:
        qpos = np.repeat(self.init_qpos[None], len(streams.generators), axis=0)
        qpos[:, -4:-2] = streams.each(_draw_object)
        qpos[:, -2:] = 0.0
        qvel = self.init_qvel + streams.uniform(-0.005, 0.005, self.model.nv)
        qvel[:, -4:] = 0.0
        return qpos, qvel


def _draw_object(rng: np.random.Generator) -> Array:
    """Draw from a rectangle, but not near the goal."""
    while True:
        place = np.array([rng.uniform(-0.3, 0.0), rng.uniform(-0.2, 0.2)])
        if np.linalg.norm(place) > 0.17:
            return place


def _body(model: Any, name: str) -> int:
    return find_body(model, name, "env.env_kwargs.xml_file")
