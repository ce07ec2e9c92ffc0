"""What a robot is to do: what it observes, what it is rewarded for, when an episode ends, how one starts."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, ValidationError, field_validator

from rlightning.config import FreeForm, Section
from rlightning.errors import ConfigError, Problem
from rlightning.simulators.mujoco.curriculum import CurriculumOptions
from rlightning.simulators.mujoco.randomisation import RandomisationOptions
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds

Range = tuple[float, float]
"""Lowest and highest value."""


class TaskOptions(Section):
    """The options of all tasks (``env.env_kwargs``); each task adds its own, and sets ``xml_file``."""

    xml_file: str
    """Model file: a path that begins with ``/``, ``.`` or ``~``, or one of the files that come with Gymnasium."""
    frame_skip: int = Field(1, ge=1)
    """Physics steps per action."""
    scale_actions: bool = False
    """The policy acts in [-1, 1], which is mapped to the control range of each actuator; otherwise its actions are the
    controls."""
    threads: int | Literal["auto"] = Field("auto")
    """Native threads that step; 0 and 1 step in the worker's own thread. "auto" takes the cores that are left to each
    worker, and fewer where there is little to do. The numbers do not depend on it."""
    randomisation: RandomisationOptions = RandomisationOptions()
    """How sub-envs differ from each other and from episode to episode."""
    curriculum: CurriculumOptions | None = None
    """How hard it is in the course of training; without one, all is at level 1."""
    render_mode: Literal["rgb_array"] | None = None
    """Taken for the sake of Gymnasium's configurations; pictures are always to be had."""
    width: int = Field(480, ge=1)
    """Width of pictures in pixels."""
    height: int = Field(480, ge=1)
    """Height of pictures in pixels."""
    camera_id: int | None = None
    """Number of the model's camera to draw with; null follows the robot where the model can."""
    camera_name: str | None = None
    """Its name instead."""
    default_camera_config: FreeForm | None = None
    """Attributes of MuJoCo's free camera; null means those of Gymnasium's env."""
    max_geom: int = Field(1000, ge=1)
    """Most geometries that are drawn."""
    visual_options: dict[int, bool] | None = None
    """Flags of MuJoCo's renderer."""

    @field_validator("frame_skip")
    @classmethod
    def _moves_on(cls, value: int) -> int:
        # A task that sets another default has a field of its own, for which the limit above does not hold.
        if value < 1:
            raise ValueError("must be at least 1")
        return value


OptionsT = TypeVar("OptionsT", bound=TaskOptions)


class Task(ABC, Generic[OptionsT]):
    """One task of one robot, written for all N worlds at once.

    A subclass names its options and fields to read, and says what the functions below say. An instance belongs to one
    env and may keep what it computes once in the constructor; the functions themselves must depend on nothing but the
    worlds. They are called in this order: ``landmark``, (the step), ``landmark``, ``terminated``, ``rewards``,
    ``describe``, ``observe``.

    Attributes:
        options: The options, validated.
        model: MuJoCo's model.
        dt: Seconds per action.
        init_qpos, init_qvel: Positions and velocities of the model as it is written, [nq] and [nv].
    """

    Options: ClassVar[type[TaskOptions]]
    """Class of the options, a subclass of ``TaskOptions``."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields of ``MjData`` besides those of ``Worlds`` that the functions read, such as ``sensordata`` or ``xpos``."""
    max_episode_steps: ClassVar[int | None] = None
    """Steps after which an episode is cut; None is no limit."""
    velocity_names: ClassVar[tuple[str, ...]] = ()
    """Names in ``info`` of the components of the landmark's velocity."""

    def __init__(self, options: OptionsT, model: Any) -> None:
        self.options, self.model = options, model
        self.dt = float(model.opt.timestep) * options.frame_skip
        self.init_qpos: Array = np.array(model.qpos0)
        self.init_qvel: Array = np.zeros(model.nv)

    @classmethod
    def fields(cls, options: Any) -> tuple[str, ...]:
        """Name the fields to read with some options; fewer are faster."""
        return cls.reads

    @classmethod
    def time_limit(cls, name: str) -> int | None:
        """Give the steps after which an episode is cut, unless the configuration says otherwise."""
        return cls.max_episode_steps

    @abstractmethod
    def observe(self, worlds: Worlds) -> Array:
        """Observe, [N, D] float64."""

    @abstractmethod
    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        """Give the terms of the reward by name, [N] each; the reward is their sum, and each is logged."""

    def terminated(self, worlds: Worlds) -> Array:
        """Tell where the step led to a terminal state, [N] bool."""
        return np.zeros(worlds.num_envs, np.bool_)

    @abstractmethod
    def start(self, streams: Streams) -> tuple[Array, Array]:
        """Draw positions and velocities to start from, [K, nq] and [K, nv], for K worlds."""

    def landmark(self, worlds: Worlds) -> Array | None:
        """Give the point, [N, ...], whose velocity during a step the task wants (``Worlds.velocity``)."""
        return None

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        """Give further numbers for ``info``, [N, ...]; also after a start."""
        return {}

    def succeeded(self, worlds: Worlds) -> Array:
        """Tell which episodes, of those that end now, were a success, [N] bool; a curriculum can follow it."""
        return ~worlds.terminated

    def camera(self) -> Mapping[str, Any] | None:
        """Give the attributes of MuJoCo's free camera to draw with; None leaves them."""
        return None


def parse_options(options: type[TaskOptions], kwargs: Mapping[str, Any]) -> TaskOptions:
    """Validate ``env.env_kwargs``.

    Raises:
        ConfigError: With all problems, and the nearest valid name for each unknown one.
    """
    try:
        return options.model_validate(dict(kwargs))
    except ValidationError as error:
        raise ConfigError([_problem(each, options) for each in error.errors()]) from error


def _problem(error: Any, options: type[TaskOptions]) -> Problem:
    parts = [str(part) for part in error["loc"]]
    path = ".".join(["env", "env_kwargs", *parts])
    if error["type"] != "extra_forbidden":
        return Problem(path, f"{error['msg'].removeprefix('Value error, ')}; got {error['input']!r}")
    known = list(options.model_fields) if len(parts) == 1 else []
    nearest = difflib.get_close_matches(parts[-1], known, n=1)
    return Problem(path, "there is no such option", suggestion=f"env.env_kwargs.{nearest[0]}" if nearest else "")
