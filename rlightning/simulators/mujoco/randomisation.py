"""Randomisation of worlds: masses, friction, actuator strength, pushes, delays and noise."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
from pydantic import Field, model_validator

from rlightning.config import Section
from rlightning.errors import ConfigError, Problem, nearest_name
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds

Range = tuple[float, float]
WholeRange = tuple[int, int]

_UNCHANGED = (1.0, 1.0)
_AT_ONCE = (0, 0)
_SMALLEST_FACTOR = 1e-6
_MASS_FIELDS = (
    "body_mass",
    "body_inertia",
    # Computed by MuJoCo from the two above (mj_setConst).
    "body_subtreemass",
    "body_invweight0",
    "dof_M0",
    "dof_invweight0",
    "tendon_invweight0",
    "actuator_acc0",
)
_FRICTION_FIELDS = ("geom_friction", "pair_friction")
_GAIN_FIELDS = ("actuator_gainprm", "actuator_biasprm")
_MUSCLE_FORCE = slice(2, 4)
"""Parameters of a muscle that are forces: the peak, and the scale from which MuJoCo computes a peak that is not set
(``mju_muscleGain``). The others are lengths and shapes."""


class PushOptions(Section):
    """Pushes: horizontal forces on a body, at random times."""

    body: int | str = 1
    """Name or index of the body; the first one of the model is 1."""
    force_n: Range
    """Force in N, drawn for each push; the direction is drawn uniformly."""
    interval: WholeRange = (100, 200)
    """Actions from the start of an episode, or of a push, to the next push."""
    duration: int = Field(5, ge=1)
    """Duration of a push in actions."""

    @model_validator(mode="after")
    def _check_ranges(self) -> PushOptions:
        _check(self, force_n=0, interval=self.duration)
        return self


class RandomisationOptions(Section):
    """Variation of worlds, between sub-envs and from episode to episode; none by default.

    Values are drawn uniformly from their range, for each sub-env at the start of each episode. With a curriculum, these
    are the ranges of level 1, and they shrink to a point towards level 0: factors to 1, delays and forces to 0.
    """

    mass: Range = _UNCHANGED
    """Factor of the masses and inertias of all bodies."""
    friction: Range = _UNCHANGED
    """Factor of the friction of all geometries, and of all geometry pairs with a friction of their own."""
    gain: Range = _UNCHANGED
    """Factor of the strength of all actuators: gains and biases, or the forces of muscles."""
    action_delay: WholeRange = _AT_ONCE
    """Delay of actions, in whole actions. Before the first action arrives, controls are those of the keyframe of the
    start. Without a keyframe, position servos hold their start positions, and other actuators get 0."""
    observation_delay: WholeRange = _AT_ONCE
    """Delay of observations, in whole actions; before the first one arrives, the start is observed."""
    observation_noise: dict[str, float] = Field({})
    """Largest noise of each term of the observation, by the names in ``Task.observe`` ("observation" if it returns one
    array); drawn uniformly for each number at each step."""
    push: PushOptions | None = None
    """Pushes."""

    @model_validator(mode="after")
    def _check_ranges(self) -> RandomisationOptions:
        _check(self, mass=_SMALLEST_FACTOR, friction=_SMALLEST_FACTOR, gain=_SMALLEST_FACTOR)
        _check(self, action_delay=0, observation_delay=0)
        for name, size in self.observation_noise.items():
            if not 0 <= size < np.inf:
                raise ValueError(f"observation_noise of {name} is to be finite and at least 0; got {size}")
        return self


def _check(section: Section, **lowest: float) -> None:
    for name, bound in lowest.items():
        values = getattr(section, name)
        if not bound <= values[0] <= values[1]:
            raise ValueError(f"{name} is to be a lowest and a highest value, at least {bound:g}; got {list(values)}")


class RandomModels:
    """Draws masses, friction and actuator strength of each world for each episode.

    Attributes:
        factors: Factors of mass, friction and gain, [N, 3].
    """

    def __init__(self, options: RandomisationOptions, worlds: Worlds) -> None:
        self._ranges = (options.mass, options.friction, options.gain)
        self._worlds = worlds
        if options.gain != _UNCHANGED:
            _require_known_gains(worlds.model)
            self._gain_forces = _are_forces(worlds.model.actuator_gaintype == mujoco.mjtGain.mjGAIN_MUSCLE)
            self._bias_forces = _are_forces(worlds.model.actuator_biastype == mujoco.mjtBias.mjBIAS_MUSCLE)
        self._scratch = copy.copy(worlds.model)
        self._data = mujoco.MjData(worlds.model)
        self.factors = np.ones((worlds.num_envs, 3))
        fields = [
            name
            for bounds, names in zip(self._ranges, (_MASS_FIELDS, _FRICTION_FIELDS, _GAIN_FIELDS), strict=True)
            for name in names
            if bounds != _UNCHANGED and getattr(worlds.model, name).size
        ]
        worlds.vary(fields)

    @staticmethod
    def wanted(options: RandomisationOptions) -> bool:
        """Whether any factor is drawn."""
        return any(bounds != _UNCHANGED for bounds in (options.mass, options.friction, options.gain))

    def begin(self, rows: Sequence[int], streams: Streams) -> None:
        """Draw factors for some worlds."""
        for column, bounds in enumerate(self._ranges):
            if bounds != _UNCHANGED:
                drawn = streams.uniform(*bounds, 1)[:, 0]
                self.factors[rows, column] = 1.0 + streams.level * (drawn - 1.0)
        for row in rows:
            self._apply(row)

    def get_state(self) -> dict[str, Any]:
        """Return the factors, which determine the fields of the model."""
        return {"factors": self.factors.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the factors of a state."""
        self.factors[:] = state["factors"]
        for row in range(self._worlds.num_envs):
            self._apply(row)

    def _apply(self, row: int) -> None:
        nominal, scratch = self._worlds.model, self._scratch
        mass, friction, gain = self.factors[row]
        scratch.geom_friction[:] = nominal.geom_friction * friction
        scratch.pair_friction[:] = nominal.pair_friction * friction
        if self._ranges[2] != _UNCHANGED:
            scratch.actuator_gainprm[:] = nominal.actuator_gainprm * np.where(self._gain_forces, gain, 1.0)
            scratch.actuator_biasprm[:] = nominal.actuator_biasprm * np.where(self._bias_forces, gain, 1.0)
        if self._ranges[0] != _UNCHANGED:
            scratch.body_mass[:] = nominal.body_mass * mass
            scratch.body_inertia[:] = nominal.body_inertia * mass
            mujoco.mj_setConst(scratch, self._data)
        for name, values in self._worlds.own.items():
            values[row] = getattr(scratch, name)


def _require_known_gains(model: Any) -> None:
    """Refuse actuators whose parameters are not known to be forces."""
    known = {mujoco.mjtGain.mjGAIN_FIXED, mujoco.mjtGain.mjGAIN_AFFINE, mujoco.mjtGain.mjGAIN_MUSCLE}
    others = [
        model.actuator(i).name or str(i) for i, kind in enumerate(model.actuator_gaintype.tolist()) if kind not in known
    ]
    if others:
        raise ConfigError(
            Problem(
                "env.env_kwargs.randomisation.gain",
                f"only gains that are fixed, affine or those of muscles can vary, not those of {', '.join(others)}",
            )
        )


def _are_forces(is_muscle: Array) -> Array:
    """Return which parameters of gains or biases are forces, [A, 10] bool, from which actuators are muscles, [A]."""
    is_force = np.repeat(~is_muscle[:, None], mujoco.mjNGAIN, axis=1)
    is_force[:, _MUSCLE_FORCE] = True
    return is_force


class Pushes:
    """Horizontal forces on one body of each world, at times that are drawn per world.

    Attributes:
        next: Age of the episode, in actions, at which the next push begins, [N].
        end: Age at which the last push ends, [N].
    """

    def __init__(self, options: PushOptions, worlds: Worlds) -> None:
        self._options, self._worlds = options, worlds
        self._body = find_body(worlds.model, options.body, "env.env_kwargs.randomisation.push.body")
        self.next = np.zeros(worlds.num_envs, np.int64)
        self.end = np.zeros(worlds.num_envs, np.int64)

    def begin(self, rows: Sequence[int], streams: Streams) -> None:
        """Draw the time of the first push of a new episode; a start has removed all forces."""
        self.next[rows] = self._intervals(streams)
        self.end[rows] = 0

    def act(self, ages: Array, generators: Sequence[np.random.Generator]) -> None:
        """Begin and end pushes before the action of age ``ages``, [N]."""
        force = self._worlds.xfrc_applied[:, self._body, :2]
        force[self.end == ages] = 0.0
        rows = np.flatnonzero(self.next == ages)
        if not rows.size:
            return
        streams = Streams([generators[row] for row in rows.tolist()], self._worlds.level[rows])
        angle = streams.uniform(0.0, 2.0 * np.pi, 1)
        size = streams.uniform(*self._options.force_n, 1) * streams.level[:, None]
        force[rows] = size * np.concatenate((np.cos(angle), np.sin(angle)), axis=1)
        self.end[rows] = ages[rows] + self._options.duration
        self.next[rows] = ages[rows] + self._intervals(streams)

    def get_state(self) -> dict[str, Any]:
        """Return the times of pushes; the forces are part of the worlds."""
        return {"next": self.next.copy(), "end": self.end.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the times of a state."""
        self.next[:], self.end[:] = state["next"], state["end"]

    def _intervals(self, streams: Streams) -> Array:
        low, high = self._options.interval
        return streams.each(lambda rng: rng.integers(low, high, endpoint=True))


class Noise:
    """Noise of observations, drawn uniformly at each step from the generator of each world.

    Attributes:
        values: The current noise, [N, D].
    """

    def __init__(self, sizes: Mapping[str, float], worlds: Worlds, widths: Mapping[str, int]) -> None:
        for name in sizes:
            if name not in widths:
                path = "env.env_kwargs.randomisation.observation_noise."
                message = f"the task observes no such term; it observes {', '.join(widths)}"
                raise ConfigError(Problem(path + name, message, suggestion=nearest_name(name, widths, path)))
        self._size = np.concatenate([np.full(width, sizes.get(name, 0.0)) for name, width in widths.items()])
        self.values = np.zeros((worlds.num_envs, len(self._size)))

    def draw(self, rows: Any, streams: Streams) -> None:
        """Draw new noise for some worlds."""
        drawn = streams.uniform(-1.0, 1.0, len(self._size))
        self.values[rows] = self._size * streams.level[:, None] * drawn


class Delay:
    """Delays rows of numbers by a number of actions that is drawn per world.

    Attributes:
        late: Delay in actions, [N].
        past: The last values, [L + 1, N, D].
        newest: Index of the newest values in ``past``.
    """

    def __init__(self, bounds: WholeRange, worlds: Worlds, width: int, dtype: Any) -> None:
        self._bounds = bounds
        self.late = np.zeros(worlds.num_envs, np.int64)
        self.past = np.zeros((bounds[1] + 1, worlds.num_envs, width), dtype)
        self.newest = 0
        self._all = np.arange(worlds.num_envs)

    @staticmethod
    def wanted(bounds: WholeRange) -> bool:
        """Whether there may be a delay."""
        return bounds != _AT_ONCE

    def begin(self, rows: Sequence[int], streams: Streams) -> None:
        """Draw new delays."""
        low, high = self._bounds
        drawn = streams.each(lambda rng: rng.integers(low, high, endpoint=True))
        self.late[rows] = np.rint(streams.level * drawn)

    def fill(self, rows: Any, values: Any) -> None:
        """Set all past values of some worlds to ``values``."""
        self.past[:, rows] = values

    def __call__(self, values: Array) -> Array:
        """Append the newest values and return the values that are due, [N, D] each."""
        self.newest = (self.newest + 1) % len(self.past)
        self.past[self.newest] = values
        return self.due()

    def due(self) -> Array:
        """Return the values that are due, [N, D]."""
        due: Array = self.past[(self.newest - self.late) % len(self.past), self._all]
        return due

    def get_state(self) -> dict[str, Any]:
        """Return the delays and the past values."""
        return {"late": self.late.copy(), "past": self.past.copy(), "newest": self.newest}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the delays and the past values of a state."""
        self.late[:], self.past[:], self.newest = state["late"], state["past"], state["newest"]


def find_body(model: Any, body: int | str, option: str) -> int:
    """Return the index of a body.

    Raises:
        ConfigError: If the model has no such body.
    """
    if isinstance(body, int):
        if 0 <= body < model.nbody:
            return body
        raise ConfigError(Problem(option, f"there is no body {body}; the model has {model.nbody}"))
    number = int(mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, body))
    if number < 0:
        names = ", ".join(model.body(i).name for i in range(model.nbody))
        raise ConfigError(Problem(option, f"there is no body {body!r}; the model has {names}"))
    return number
