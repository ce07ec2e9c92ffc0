"""Worlds that differ and change: models with other masses, friction and strength, pushes, delays."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np
from pydantic import Field, model_validator

from rlightning.config import Section
from rlightning.errors import ConfigError, Problem
from rlightning.simulators.mujoco.worlds import Array, Streams, Worlds

Range = tuple[float, float]
WholeRange = tuple[int, int]

_UNCHANGED = (1.0, 1.0)
_AT_ONCE = (0, 0)
_SMALLEST_FACTOR = 1e-6
_MASS_FIELDS = (
    "body_mass",
    "body_inertia",
    # What MuJoCo computes from these (mj_setConst).
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
"""Parameters of a muscle that are forces: the peak, and what it follows from where it is not given (MuJoCo,
``mju_muscleGain``). The others are lengths and shapes."""


class PushOptions(Section):
    """Pushes: now and then a horizontal force acts on a body for a while."""

    body: int | str = 1
    """Name or number of the body; the first one of the model is 1."""
    force_n: Range
    """Force in N, drawn for each push; its direction is drawn too."""
    interval: WholeRange = (100, 200)
    """Actions from the start of an episode, or of a push, to the next push."""
    duration: int = Field(5, ge=1)
    """Actions that a push lasts."""

    @model_validator(mode="after")
    def _check_ranges(self) -> PushOptions:
        _check(self, force_n=0, interval=self.duration)
        return self


class RandomisationOptions(Section):
    """How worlds differ, from each other and from episode to episode; nothing does by default.

    Values are drawn evenly from their range, for each sub-env at the start of each episode. With a curriculum, ranges
    are those of level 1 and shrink to nothing towards level 0: factors to 1, delays and forces to 0.
    """

    mass: Range = _UNCHANGED
    """Factor of the masses and inertias of all bodies."""
    friction: Range = _UNCHANGED
    """Factor of the friction of all geometries, and of all pairs of them that have a friction of their own."""
    gain: Range = _UNCHANGED
    """Factor of the strength of all actuators: their gains and biases; of muscles, the forces."""
    action_delay: WholeRange = _AT_ONCE
    """Whole actions by which the robot acts late. Until the first arrives, it gets the controls of the keyframe that it
    starts from, or else those that hold its position servos where they start, and 0 for other actuators."""
    observation_delay: WholeRange = _AT_ONCE
    """Whole actions by which observations are late; until then the start is observed."""
    observation_noise: dict[str, float] = Field({})
    """Largest noise of each term of the observation, by the names in ``Task.observe`` ("observation" where it returns
    one array); drawn evenly for each number at each step."""
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
    """Worlds whose masses, friction and strength are drawn anew for each episode.

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
        """Return the factors; the fields of the model follow from them."""
        return {"factors": self.factors.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the factors of a state."""
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
    """Refuse to vary the strength of actuators whose parameters are not known to be forces."""
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
    """Return which parameters of actuators' gains or biases are forces, [A, 10] bool, from which are muscles', [A]."""
    is_force = np.repeat(~is_muscle[:, None], mujoco.mjNGAIN, axis=1)
    is_force[:, _MUSCLE_FORCE] = True
    return is_force


class Pushes:
    """Horizontal forces on one body of each world, at times of its own.

    Attributes:
        next: Age, in actions, at which the next push begins, [N].
        end: Age at which the last one ends, [N].
    """

    def __init__(self, options: PushOptions, worlds: Worlds) -> None:
        self._options, self._worlds = options, worlds
        self._body = find_body(worlds.model, options.body, "env.env_kwargs.randomisation.push.body")
        self.next = np.zeros(worlds.num_envs, np.int64)
        self.end = np.zeros(worlds.num_envs, np.int64)

    def begin(self, rows: Sequence[int], streams: Streams) -> None:
        """Draw when the first push of a new episode comes; a start has removed all forces."""
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
        """Return when pushes come; the forces themselves are in the worlds."""
        return {"next": self.next.copy(), "end": self.end.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the times of a state."""
        self.next[:], self.end[:] = state["next"], state["end"]

    def _intervals(self, streams: Streams) -> Array:
        low, high = self._options.interval
        return streams.each(lambda rng: rng.integers(low, high, endpoint=True))


class Noise:
    """Noise of observations, drawn evenly at each step from the generator of each world.

    Attributes:
        values: The noise of the moment, [N, D].
    """

    def __init__(self, sizes: Mapping[str, float], worlds: Worlds, widths: Mapping[str, int]) -> None:
        for name in sizes:
            if name not in widths:
                nearest = difflib.get_close_matches(name, widths, n=1)
                path = "env.env_kwargs.randomisation.observation_noise"
                raise ConfigError(
                    Problem(
                        f"{path}.{name}",
                        f"the task observes no such term; it observes {', '.join(widths)}",
                        suggestion=f"{path}.{nearest[0]}" if nearest else "",
                    )
                )
        self._size = np.concatenate([np.full(width, sizes.get(name, 0.0)) for name, width in widths.items()])
        self.values = np.zeros((worlds.num_envs, len(self._size)))

    def draw(self, rows: Any, streams: Streams) -> None:
        """Draw new noise for some worlds."""
        drawn = streams.uniform(-1.0, 1.0, len(self._size))
        self.values[rows] = self._size * streams.level[:, None] * drawn


class Delay:
    """Rows of numbers that each world gets a number of actions late.

    Attributes:
        late: By how many actions, [N].
        past: The last values, [L + 1, N, D]; the newest is at ``newest``.
    """

    def __init__(self, bounds: WholeRange, worlds: Worlds, width: int, dtype: Any) -> None:
        self._bounds = bounds
        self.late = np.zeros(worlds.num_envs, np.int64)
        self.past = np.zeros((bounds[1] + 1, worlds.num_envs, width), dtype)
        self.newest = 0
        self._all = np.arange(worlds.num_envs)

    @staticmethod
    def wanted(bounds: WholeRange) -> bool:
        """Whether anything may come late."""
        return bounds != _AT_ONCE

    def begin(self, rows: Sequence[int], streams: Streams) -> None:
        """Draw new delays."""
        low, high = self._bounds
        drawn = streams.each(lambda rng: rng.integers(low, high, endpoint=True))
        self.late[rows] = np.rint(streams.level * drawn)

    def fill(self, rows: Any, values: Any) -> None:
        """Fill the history of some worlds with ``values``."""
        self.past[:, rows] = values

    def __call__(self, values: Array) -> Array:
        """Store the newest values, and return those that are due, [N, D] each."""
        self.newest = (self.newest + 1) % len(self.past)
        self.past[self.newest] = values
        return self.due()

    def due(self) -> Array:
        """Return what is due without taking new values, [N, D]."""
        due: Array = self.past[(self.newest - self.late) % len(self.past), self._all]
        return due

    def get_state(self) -> dict[str, Any]:
        """Return the delays and what is on its way."""
        return {"late": self.late.copy(), "past": self.past.copy(), "newest": self.newest}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with those of a state."""
        self.late[:], self.past[:], self.newest = state["late"], state["past"], state["newest"]


def find_body(model: Any, body: int | str, option: str) -> int:
    """Find the number of a body.

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
