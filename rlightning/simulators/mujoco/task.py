"""What a robot is to do: what it observes, what it is rewarded for, when an episode ends, how one starts."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

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
    action_scale: float | dict[str, float] | None = None
    """Change of a control per unit of action: of all, or by names of actuators, and 1 for those not named. With
    it or an offset, a control is offset + scale * action, and actions have no bounds; MuJoCo cuts controls to their
    range."""
    action_offset: Literal["start"] | dict[str, float] | None = None
    """Control at action 0, by names of actuators, and 0 for those that are not named. "start": that of the keyframe, or
    else that holds position servos at ``init_qpos``."""
    keyframe: str | None = None
    """Keyframe of the model whose positions, velocities and controls are ``init_qpos``, ``init_qvel`` and ``init_ctrl``
    of the task; null means the model as it is written."""
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

    @model_validator(mode="after")
    def _maps_actions_once(self) -> TaskOptions:
        if self.scale_actions and not (self.action_scale is None and self.action_offset is None):
            raise ValueError("scale_actions maps actions to the range of controls: leave out action_scale and _offset")
        return self


OptionsT = TypeVar("OptionsT", bound=TaskOptions)


class Task(ABC, Generic[OptionsT]):
    """One task of one robot, written for all N worlds at once.

    A subclass names its options and fields to read, and says what the functions below say. An instance belongs to one
    env and may keep what it computes once in the constructor; the functions themselves must depend on nothing but the
    worlds. They are called in this order: ``landmark``, (the step), ``landmark``, ``update``, ``terminated``,
    ``rewards``, ``describe``, ``observe``.

    Attributes:
        options: The options, validated.
        model: MuJoCo's model.
        dt: Seconds per action.
        init_qpos, init_qvel: Positions and velocities of the keyframe, or of the model as it is written, [nq] and [nv].
        init_ctrl: Controls of the keyframe, [nu]; None without one, or where it has none.

    Raises:
        ConfigError: If the model has no such keyframe.
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
        self.init_ctrl: Array | None = None
        if options.keyframe is not None:
            key = _find_keyframe(model, options.keyframe)
            self.init_qpos, self.init_qvel = model.key_qpos[key].copy(), model.key_qvel[key].copy()
            # MuJoCo stores zeros where a keyframe has no controls.
            self.init_ctrl = model.key_ctrl[key].copy() if model.key_ctrl[key].any() else None

    @classmethod
    def fields(cls, options: Any) -> tuple[str, ...]:
        """Name the fields to read with some options; fewer are faster."""
        return cls.reads

    @classmethod
    def time_limit(cls, name: str) -> int | None:
        """Return the steps after which an episode is cut, unless the configuration says otherwise."""
        return cls.max_episode_steps

    def variables(self) -> Mapping[str, Any]:
        """Return what the task keeps per world and episode: the values of one world at a start, by name.

        A value sets shape and dtype of ``worlds.variables[name]``, [N, ...]. Commands, targets, phases and times in
        the air are such variables. They are set to these values at each start, before ``start`` may write others, and
        are saved with the state.
        """
        return {}

    def update(self, worlds: Worlds, streams: Streams) -> None:
        """Update variables after a step; ``streams`` has all N worlds, with generators apart from those of starts."""

    @abstractmethod
    def observe(self, worlds: Worlds) -> Array | dict[str, Array]:
        """Observe, [N, D] float64; or terms by name, [N, D] each, which are joined in their order."""

    @abstractmethod
    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        """Return the terms of the reward by name, [N] each; the reward is their sum, and each is logged."""

    def terminated(self, worlds: Worlds) -> Array:
        """Return where the step led to a terminal state, [N] bool."""
        return np.zeros(worlds.num_envs, np.bool_)

    @abstractmethod
    def start(self, streams: Streams) -> tuple[Array, Array]:
        """Draw positions and velocities to start from, [K, nq] and [K, nv], for K worlds.

        Variables of those worlds are written by ``streams.variables[name][streams.rows] = ...``, [K, ...].
        """

    def landmark(self, worlds: Worlds) -> Array | None:
        """Return the point, [N, ...], whose velocity during a step the task wants (``Worlds.velocity``)."""
        return None

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        """Return further numbers for ``info``, [N, ...]; also after a start."""
        return {}

    def succeeded(self, worlds: Worlds) -> Array:
        """Return which episodes, of those that end now, were a success, [N] bool; a curriculum can follow it."""
        return ~worlds.terminated

    def camera(self) -> Mapping[str, Any] | None:
        """Return the attributes of MuJoCo's free camera to draw with; None leaves them."""
        return None


def _find_keyframe(model: Any, name: str) -> int:
    names = [model.key(i).name for i in range(model.nkey)]
    if name in names:
        return names.index(name)
    raise ConfigError(
        Problem(
            "env.env_kwargs.keyframe",
            f"the model has no keyframe {name!r}; it has {', '.join(names) or 'none'}",
            suggestion=next(iter(difflib.get_close_matches(name, names, n=1)), ""),
        )
    )


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
