"""N worlds of one robot: the states are the rows of one array, and native threads step them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import mujoco
import numpy as np

from rlightning.errors import ConfigError, Problem, ShapeError, nearest_name

Array = np.ndarray[Any, np.dtype[Any]]

_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)
"""The complete input of the next step: positions, velocities, controls, forces, and the solver's warm start."""
_PARTS = {
    "time": mujoco.mjtState.mjSTATE_TIME,
    "qpos": mujoco.mjtState.mjSTATE_QPOS,
    "qvel": mujoco.mjtState.mjSTATE_QVEL,
    "ctrl": mujoco.mjtState.mjSTATE_CTRL,
    "xfrc_applied": mujoco.mjtState.mjSTATE_XFRC_APPLIED,
}
_BLOCKS_PER_THREAD = 4
"""Blocks of rows per thread. Threads fetch blocks in turn, so that a slow thread steps fewer of them."""
_TIMED_STEPS = 5
_ON_DEMAND = (
    (frozenset({"cacc", "cfrc_int", "cfrc_ext"}), mujoco.mj_rnePostConstraint),
    (frozenset({"subtree_linvel", "subtree_angmom"}), mujoco.mj_subtreeVel),
)
"""Fields that a step does not compute (forces on bodies, motion of subtrees), and the functions that compute them."""
_VARIABLE_SIZE = ("efc_", "iefc_", "iacc", "ifrc_")
"""Prefixes of fields with one row per active constraint."""
_NOT_COMPUTED = frozenset({"qfrc_inverse", "solver_fwdinv"})
"""Fields that steps do not compute."""
_RESETS = slice(int(mujoco.mjtWarning.mjWARN_BADQPOS), int(mujoco.mjtWarning.mjWARN_BADQACC) + 1)
"""Warnings (of positions, velocities, accelerations) with which MuJoCo resets a world to the initial state."""


class Variables(dict[str, Array]):
    """Variables of N worlds by name, [N, ...] each. An assignment writes into the existing array.

    Args:
        initial: Values of one world at the start of an episode, by name; they set shape and dtype.
        num_envs: N.
    """

    def __init__(self, initial: Mapping[str, Any], num_envs: int) -> None:
        self._initial = {name: np.asarray(value) for name, value in initial.items()}
        for name, value in self._initial.items():
            if value.dtype.kind not in "biuf":
                raise ShapeError(f"variable {name!r} of the task is {value.dtype}; numbers expected")
        super().__init__({name: np.repeat(value[None], num_envs, axis=0) for name, value in self._initial.items()})

    def __missing__(self, name: str) -> Array:
        nearest = nearest_name(name, self)
        meant = f"did you mean {nearest!r}" if nearest else f"it declares {', '.join(self) or 'none'}"
        raise KeyError(f"the task declares no variable {name!r}; {meant}")

    def __setitem__(self, name: str, value: Any) -> None:
        array = self[name]
        if np.shape(value) != array.shape:
            raise ShapeError(f"variable {name!r} got shape {list(np.shape(value))}, {list(array.shape)} expected")
        array[...] = value

    def reset(self, rows: Sequence[int]) -> None:
        """Reset the variables of some worlds to the initial values."""
        for name, value in self._initial.items():
            self[name][rows] = value

    def get_state(self) -> dict[str, Array]:
        """Return copies of all variables."""
        return {name: array.copy() for name, array in self.items()}

    def set_state(self, state: Mapping[str, Array]) -> None:
        """Restore the variables of a state.

        Raises:
            ValueError: If the state has other variables.
        """
        if set(state) != set(self):
            raise ValueError(f"it has the variables {sorted(state)}, and the task declares {sorted(self)}")
        for name, array in state.items():
            self[name] = array


class _Fields(dict[str, Array]):
    """Fields of MuJoCo's data that are read after each step, by name."""

    def __missing__(self, name: str) -> Array:
        raise KeyError(f"{name!r} is not read: add it to the task's reads, which has {', '.join(self) or 'none'}")


class Worlds:
    """N worlds of one model.

    A world is a row of ``state``. Each thread has one ``MjData``: it loads a row into it, steps, and writes the row
    back. Memory and caches therefore hold N short rows instead of N large structures. Results do not depend on which
    thread steps a row: they are the same bit for bit with any number of threads. ``mujoco.rollout`` would loop over the
    rows natively. However, it returns neither the solver's warm start nor the quantities that are derived from
    positions. Without the warm start, worlds with contacts drift away from worlds that are stepped one by one.

    Attributes:
        model: The nominal model.
        own: Fields of the model in which worlds differ (see ``vary``), by name, [N, ...]. They are written into a
            thread's copy of the model before each step, since N models would be half a megabyte each.
        num_envs: N.
        substeps: Physics steps per ``step``.
        dt: Seconds per ``step``.
        state: [N, S] float64; ``time`` [N, 1], ``qpos`` [N, nq], ``qvel`` [N, nv], ``ctrl`` [N, nu] and
            ``xfrc_applied`` [N, nbody, 6] are views into it.
        read: Copies of the fields of ``MjData`` in ``reads``, by name, [N, ...]. As in ``mj_step``, quantities that
            depend on positions (body positions, sensors) are those at the beginning of the last physics step.
        action: The last action of the policy, [N, nu], in the dtype of the action space; 0 at a start.
        command: The last action in the units of the controls, [N, nu], neither delayed nor clipped.
        previous_action: The action before the last one, [N, nu]; 0 at a start.
        velocity: Velocity of the task's landmark during the last step, [N, ...], 0 at a start; None without a landmark.
        variables: The variables of the task (``Task.variables``), by name, [N, ...].
        neutral: Controls with which position servos hold the start positions of the episode, [N, nu]; 0 for other
            actuators. None unless ``keep_neutral`` was called.
        terminated: Whether the last step led to a terminal state, [N] bool.
        level: Level of the curriculum, [N] in 0 to 1; 1 without a curriculum.
        unstable: Indices of worlds whose simulation failed in the last step: MuJoCo found a number that is huge or not
            finite, and reset the world to the initial state of the model.

    Args:
        model: The nominal model.
        num_envs: N.
        substeps: Physics steps per ``step``.
        reads: Fields of ``MjData`` to copy after each step.
        threads: Threads that step.

    Raises:
        ConfigError: If the model has state that is not in rows (plugins, sleeping islands), or if a field to read does
            not exist or has no fixed size.
    """

    velocity: Any = None
    neutral: Array | None = None

    def __init__(self, model: Any, num_envs: int, substeps: int, reads: Sequence[str] = (), threads: int = 1) -> None:
        _refuse_hidden_state(model)
        self.model, self.num_envs, self.substeps = model, num_envs, substeps
        self.dt = float(model.opt.timestep) * substeps
        self.own: dict[str, Array] = {}
        self.state = np.zeros((num_envs, mujoco.mj_stateSize(model, _STATE)))
        self._rows = list(self.state)
        views = {name: self.state[:, _columns(model, part)] for name, part in _PARTS.items()}
        self.time, self.qpos, self.qvel, self.ctrl = (views[name] for name in ("time", "qpos", "qvel", "ctrl"))
        self.xfrc_applied = views["xfrc_applied"].reshape(num_envs, model.nbody, 6)
        self._threads = max(1, min(threads, num_envs))
        self._datas = [mujoco.MjData(model) for _ in range(self._threads)]
        self._models = [model] * self._threads
        self._writes: list[list[tuple[Array, Array]]] = [[] for _ in range(self._threads)]
        self.read = _Fields({name: np.zeros((num_envs, *_field(self._datas[0], name).shape)) for name in reads})
        self._copies = [[(self.read[name], _field(data, name)) for name in reads] for data in self._datas]
        if "energy" in reads and not int(model.opt.enableflags) & int(mujoco.mjtEnableBit.mjENBL_ENERGY):
            raise ConfigError(
                Problem("env.name", "the task reads 'energy', and the model does not enable it (option, flag, energy)")
            )
        self._derive = [derive for fields, derive in _ON_DEMAND if not fields.isdisjoint(reads)]
        # In Gymnasium's envs, forces on bodies are 0 at a start.
        self._derive_at_start = [derive for derive in self._derive if derive is not mujoco.mj_rnePostConstraint]
        self._resets = [data.warning.number[_RESETS] for data in self._datas]
        self._no_resets = self._resets[0].tobytes()
        self.unstable: list[int] = []
        self._sensors = {
            model.sensor(i).name: slice(int(model.sensor_adr[i]), int(model.sensor_adr[i] + model.sensor_dim[i]))
            for i in range(model.nsensor)
        }
        self._pool: ThreadPoolExecutor | None = None
        self.action: Array = np.zeros((num_envs, model.nu), np.float32)
        self.command: Array = self.action
        self.previous_action: Array = np.zeros_like(self.action)
        self.terminated = np.zeros(num_envs, np.bool_)
        self.level = np.ones(num_envs)
        self.variables = Variables({}, num_envs)

    @property
    def threads(self) -> int:
        """Number of threads that step, including the calling one."""
        return self._threads

    @property
    def is_unstable(self) -> Array:
        """Whether the simulation failed in the last step, [N] bool."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[self.unstable] = True
        return mask

    def sensor(self, name: str) -> Array:
        """Return the measurements of a sensor, [N, dim]; the task must read ``sensordata``.

        Raises:
            KeyError: If the model has no sensor of that name; the message lists its sensors.
        """
        if "sensordata" not in self.read:
            raise KeyError(f"to read the sensor {name!r}, the task has to name sensordata in its reads")
        if name not in self._sensors:
            raise KeyError(f"the model has no sensor {name!r}; it has {', '.join(self._sensors) or 'none'}")
        values: Array = self.read["sensordata"][:, self._sensors[name]]
        return values

    def step(self) -> None:
        """Step all worlds with the controls in ``ctrl``."""
        self.unstable = []
        threads = self._threads
        if threads == 1:
            self._step_rows(range(self.num_envs), 0)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads - 1, thread_name_prefix="mujoco")
        blocks = _blocks(self.num_envs, threads * _BLOCKS_PER_THREAD)
        helpers = [self._pool.submit(self._step_blocks, blocks, thread) for thread in range(1, threads)]
        self._step_blocks(blocks, 0)
        for helper in helpers:
            helper.result()

    def start(self, rows: Sequence[int], qpos: Array, qvel: Array) -> None:
        """Start some worlds with the given positions and velocities.

        Args:
            rows: Indices of K worlds.
            qpos: Positions, [K, nq].
            qvel: Velocities, [K, nv].
        """
        data, model = self._datas[0], self._models[0]
        for row, position, velocity in zip(rows, qpos, qvel, strict=True):
            for values, field in self._writes[0]:
                field[...] = values[row]
            mujoco.mj_resetData(model, data)
            data.qpos[:], data.qvel[:] = position, velocity
            mujoco.mj_forward(model, data)
            for compute in self._derive_at_start:
                compute(model, data)
            mujoco.mj_getState(model, data, self._rows[row], _STATE)
            if self.neutral is not None:
                self.neutral[row] = holding_controls(model, data)
            for target, source in self._copies[0]:
                target[row] = source

    def keep_neutral(self) -> None:
        """Compute ``neutral`` at each start from now on."""
        self.neutral = np.zeros((self.num_envs, self.model.nu))

    def vary(self, names: Sequence[str]) -> None:
        """Add fields of the model to ``own``, [N, ...], with their nominal values."""
        n = self.num_envs
        self.own = {name: np.repeat(getattr(self.model, name)[None], n, axis=0) for name in names}
        self._models = [copy.copy(self.model) for _ in range(self._threads)]
        self._writes = [[(self.own[name], getattr(model, name)) for name in names] for model in self._models]

    def load(self, row: int, data: Any) -> None:
        """Load a world into another ``MjData``, for rendering."""
        mujoco.mj_setState(self.model, data, self._rows[row], _STATE)
        mujoco.mj_forward(self.model, data)

    def close(self) -> None:
        """Stop the threads; may be called twice."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _step_blocks(self, blocks: list[range], thread: int) -> None:
        while True:
            try:
                # A single operation, so that no two threads get the same block.
                block = blocks.pop()
            except IndexError:
                return
            self._step_rows(block, thread)

    def _step_rows(self, block: Iterable[int], thread: int) -> None:
        # This loop runs once per world and step. MuJoCo's functions release the interpreter lock.
        data, model, substeps = self._datas[thread], self._models[thread], self.substeps
        rows, writes, copies, derive = self._rows, self._writes[thread], self._copies[thread], self._derive
        resets, no_resets = self._resets[thread], self._no_resets
        read_row, step, write_row = mujoco.mj_setState, mujoco.mj_step, mujoco.mj_getState
        for i in block:
            row = rows[i]
            for values, field in writes:
                field[...] = values[i]
            read_row(model, data, row, _STATE)
            step(model, data, substeps)
            if resets.tobytes() != no_resets:
                resets[:] = 0
                self.unstable.append(i)
            for compute in derive:
                compute(model, data)
            write_row(model, data, row, _STATE)
            for target, source in copies:
                target[i] = source


class Streams:
    """The random generators of K worlds. Draws of a world do not depend on the other worlds.

    Attributes:
        generators: K generators.
        level: Level of the curriculum of each world, [K].
        rows: Indices of the worlds, [K].
        variables: Variables of all N worlds, [N, ...]; those of the K worlds are ``variables[name][rows]``.
    """

    def __init__(
        self,
        generators: Sequence[np.random.Generator],
        level: Array,
        rows: Sequence[int] = (),
        variables: Variables | None = None,
    ) -> None:
        self.generators, self.level = generators, level
        self.rows = np.asarray(rows, np.int64)
        self.variables = Variables({}, 0) if variables is None else variables

    def uniform(self, low: Any, high: Any, size: int) -> Array:
        """Draw uniformly from ``low`` to ``high``, [K, size]."""
        return self.each(lambda rng: rng.uniform(low, high, size))

    def standard_normal(self, size: int) -> Array:
        """Draw from the standard normal distribution, [K, size]."""
        return self.each(lambda rng: rng.standard_normal(size))

    def each(self, draw: Callable[[np.random.Generator], Any]) -> Array:
        """Call ``draw`` with each generator and stack the results, [K, ...]."""
        return np.array([draw(generator) for generator in self.generators])


def holding_controls(model: Any, data: Any) -> Array:
    """Return the controls with which position servos hold the positions of ``data`` without gravity, [nu].

    At rest, the force of such an actuator is gain * control + bias[0] + bias[1] * length. Other controls are 0.
    """
    dynamics = mujoco.mjtDyn
    holds = np.isin(model.actuator_dyntype, (dynamics.mjDYN_NONE, dynamics.mjDYN_FILTER, dynamics.mjDYN_FILTEREXACT))
    holds &= model.actuator_gaintype == int(mujoco.mjtGain.mjGAIN_FIXED)
    holds &= model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_AFFINE)
    holds &= model.actuator_gainprm[:, 0] != 0.0
    each = np.arange(len(holds))
    # From MuJoCo 4 on, an actuator may have several controls and outputs.
    controls_at, lengths_at = (getattr(model, name, each)[holds] for name in ("actuator_ctrladr", "actuator_outadr"))
    gain, bias = model.actuator_gainprm[holds, 0], model.actuator_biasprm[holds]
    controls = np.zeros(model.nu)
    controls[controls_at] = -(bias[:, 0] + bias[:, 1] * data.actuator_length[lengths_at]) / gain
    return controls


def seconds_per_step(model: Any, substeps: int) -> float:
    """Measure the time of a step of one world: the shortest of the first few."""
    data, times = mujoco.MjData(model), []
    for _ in range(_TIMED_STEPS):
        start = perf_counter()
        mujoco.mj_step(model, data, substeps)
        times.append(perf_counter() - start)
    return min(times)


def _columns(model: Any, part: Any) -> slice:
    """Return the columns of a component of the state; components are ordered by their bits."""
    before = _STATE & (int(part) - 1)
    start = mujoco.mj_stateSize(model, before) if before else 0
    return slice(start, start + mujoco.mj_stateSize(model, int(part)))


def _field(data: Any, name: str) -> Array:
    field = getattr(data, name, None)
    if name.startswith(_VARIABLE_SIZE):
        raise ConfigError(Problem("env.name", f"the task reads {name!r}, whose size changes with the contacts"))
    if name in _NOT_COMPUTED:
        raise ConfigError(Problem("env.name", f"the task reads {name!r}, which steps do not compute"))
    if not isinstance(field, np.ndarray) or field.dtype != np.float64:
        raise ConfigError(Problem("env.name", f"the task reads {name!r}, which is no array of numbers of MjData"))
    return field


def _blocks(count: int, pieces: int) -> list[range]:
    """Split rows into blocks of about equal size, the first one last.

    >>> _blocks(5, 2)
    [range(3, 5), range(0, 3)]
    """
    size = -(-count // pieces)
    return [range(start, min(start + size, count)) for start in reversed(range(0, count, size))]


def _refuse_hidden_state(model: Any) -> None:
    if model.nplugin:
        raise ConfigError(Problem("env.name", "the model has plugins, whose state is not MuJoCo's: use gymnasium"))
    sleep = getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", None)
    if sleep is not None and int(model.opt.enableflags) & int(sleep):
        raise ConfigError(Problem("env.name", "the model lets bodies sleep, which is not in the state: disable it"))
