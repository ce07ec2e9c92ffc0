"""The task of a robot: observations, rewards, ends and starts of episodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from rlightning.config import FreeForm, Section
from rlightning.errors import ConfigError, Problem, nearest_name
from rlightning.simulators.mujoco.curriculum import CurriculumOptions
from rlightning.simulators.mujoco.randomisation import RandomisationOptions
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds

Range = tuple[float, float]
"""Lowest and highest value."""


class TaskOptions(Section):
    """Options of all tasks (``env.env_kwargs``); each task adds options of its own, and sets ``xml_file``."""

    xml_file: str
    """Model file: a path that begins with ``/``, ``.`` or ``~``, or the name of a model file of Gymnasium."""
    frame_skip: int = Field(1, ge=1)
    """Physics steps per action."""
    scale_actions: bool = False
    """Whether actions are in [-1, 1] and mapped to the control range of each actuator; otherwise actions are
    controls."""
    action_scale: float | dict[str, float] | None = None
    """Change of a control per unit of action: one for all, or by names of actuators, with 1 for other actuators. With
    a scale or an offset, a control is offset + scale * action, and actions have no bounds; MuJoCo clips controls to
    their range."""
    action_offset: Literal["start"] | dict[str, float] | None = None
    """Control at action 0, by names of actuators, with 0 for other actuators. "start": the control of the keyframe, or
    the control with which position servos hold ``init_qpos``."""
    keyframe: str | None = None
    """Keyframe of the model whose positions, velocities and controls are ``init_qpos``, ``init_qvel`` and ``init_ctrl``
    of the task; null means the initial state of the model."""
    threads: int | Literal["auto"] = Field("auto")
    """Native threads that step; with 0 and 1 the worker's own thread steps. "auto" uses the worker's share of the
    cores, and fewer if there is little work. Results do not depend on it."""
    randomisation: RandomisationOptions = RandomisationOptions()
    """Variation between sub-envs and from episode to episode."""
    curriculum: CurriculumOptions | None = None
    """Level of difficulty during training; without a curriculum, the level is always 1."""
    render_mode: Literal["rgb_array"] | None = None
    """Accepted for compatibility with Gymnasium; has no effect, since rendering is always available."""
    width: int = Field(480, ge=1)
    """Width of frames in pixels."""
    height: int = Field(480, ge=1)
    """Height of frames in pixels."""
    camera_id: int | None = None
    """Index of the model's camera to render with; null follows the robot if the model permits it."""
    camera_name: str | None = None
    """Name of that camera instead."""
    default_camera_config: FreeForm | None = None
    """Attributes of MuJoCo's free camera; null means those of Gymnasium's env."""
    max_geom: int = Field(1000, ge=1)
    """Largest number of geometries in a frame."""
    visual_options: dict[int, bool] | None = None
    """Flags of MuJoCo's renderer."""

    @field_validator("frame_skip")
    @classmethod
    def _moves_on(cls, value: int) -> int:
        # A task with another default redefines the field, without the limit above.
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
    """One task of one robot, computed for all N worlds at once.

    A subclass defines its options, the fields that it reads, and the methods below. An instance belongs to one env; its
    constructor may precompute values. The methods must depend on the worlds only. They are called in this order:
    ``landmark``, (the step), ``landmark``, ``update``, ``terminated``, ``rewards``, ``describe``, ``observe``.

    Attributes:
        options: The options, validated.
        model: MuJoCo's model.
        dt: Seconds per action.
        init_qpos, init_qvel: Positions, [nq], and velocities, [nv], of the keyframe, or the model's initial ones.
        init_ctrl: Controls of the keyframe, [nu]; None without a keyframe, or if it has no controls.

    Raises:
        ConfigError: If the model has no such keyframe.
    """

    Options: ClassVar[type[TaskOptions]]
    """Class of the options, a subclass of ``TaskOptions``."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Fields of ``MjData`` besides those of ``Worlds`` that the methods read, such as ``sensordata`` or ``xpos``."""
    max_episode_steps: ClassVar[int | None] = None
    """Steps after which an episode is truncated; None means no limit."""
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
            # MuJoCo stores zeros for a keyframe without controls.
            self.init_ctrl = model.key_ctrl[key].copy() if model.key_ctrl[key].any() else None

    @classmethod
    def fields(cls, options: Any) -> tuple[str, ...]:
        """Return the names of the fields that the task reads with some options; fewer fields are faster."""
        return cls.reads

    @classmethod
    def time_limit(cls, name: str) -> int | None:
        """Return the steps after which an episode is truncated; ``env.max_episode_steps`` overrides it."""
        return cls.max_episode_steps

    def variables(self) -> Mapping[str, Any]:
        """Return the task's variables per world and episode: the initial values of one world, by name.

        A value sets shape and dtype of ``worlds.variables[name]``, [N, ...]. Examples are commands, targets, phases and
        air times. Variables are set to these values at each start, before ``start``, which may write others. They are
        saved with the state.
        """
        return {}

    def update(self, worlds: Worlds, streams: Streams) -> None:
        """Update variables after a step.

        Args:
            worlds: The worlds.
            streams: Generators of all N worlds, separate from those of ``start``.
        """

    @abstractmethod
    def observe(self, worlds: Worlds) -> Array | dict[str, Array]:
        """Return the observations, [N, D] float64; or terms by name, [N, D] each, which are concatenated in order."""

    @abstractmethod
    def rewards(self, worlds: Worlds) -> dict[str, Array]:
        """Return the terms of the reward by name, [N] each; the reward is their sum, and each term is logged."""

    def terminated(self, worlds: Worlds) -> Array:
        """Whether the step led to a terminal state, [N] bool."""
        return np.zeros(worlds.num_envs, np.bool_)

    @abstractmethod
    def start(self, streams: Streams) -> tuple[Array, Array]:
        """Draw start positions, [K, nq], and velocities, [K, nv], of K worlds.

        To set variables of these worlds, write ``streams.variables[name][streams.rows] = ...``, [K, ...].
        """

    def landmark(self, worlds: Worlds) -> Array | None:
        """Return the point, [N, ...], whose velocity during a step is ``Worlds.velocity``; None if unused."""
        return None

    def describe(self, worlds: Worlds) -> dict[str, Array]:
        """Return further numbers for ``info``, [N, ...]; also called after a start."""
        return {}

    def succeeded(self, worlds: Worlds) -> Array:
        """Whether an episode that ends now was a success, [N] bool; a curriculum can follow it."""
        return ~worlds.terminated

    def camera(self) -> Mapping[str, Any] | None:
        """Return the attributes of MuJoCo's free camera for rendering; None keeps its defaults."""
        return None


def _find_keyframe(model: Any, name: str) -> int:
    names = [model.key(i).name for i in range(model.nkey)]
    if name in names:
        return names.index(name)
    message = f"the model has no keyframe {name!r}; it has {', '.join(names) or 'none'}"
    raise ConfigError(Problem("env.env_kwargs.keyframe", message, suggestion=nearest_name(name, names)))


def parse_options(options: type[TaskOptions], kwargs: Mapping[str, Any]) -> TaskOptions:
    """Validate ``env.env_kwargs``.

    Raises:
        ConfigError: If an option is not valid. Lists all problems, with the nearest valid name for each unknown one.
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
    return Problem(path, "there is no such option", suggestion=nearest_name(parts[-1], known, "env.env_kwargs."))
