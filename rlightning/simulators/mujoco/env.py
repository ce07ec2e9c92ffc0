"""The backend ``mujoco``: robot tasks in native batches."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np

from rlightning.config import EnvConfig
from rlightning.env.base_env import BaseEnv
from rlightning.errors import CheckpointError, ConfigError, Problem, ShapeError, nearest_name
from rlightning.registry import lookup
from rlightning.simulators.mujoco.curriculum import Curriculum
from rlightning.simulators.mujoco.drawing import Picture
from rlightning.simulators.mujoco.loading import load_model
from rlightning.simulators.mujoco.names import actuator_names
from rlightning.simulators.mujoco.randomisation import Delay, Noise, Pushes, RandomModels
from rlightning.simulators.mujoco.task import Task, TaskOptions, parse_options
from rlightning.simulators.mujoco.worlds import (
    Array,
    Streams,
    Variables,
    Worlds,
    holding_controls,
    seconds_per_step,
)
from rlightning.types import EnvMeta, EnvRet, PolicyResponse

logger = logging.getLogger(__name__)

_WORK_PER_THREAD_S = 100e-6
"""Least physics per thread, in seconds; handing work to a thread takes about 50 microseconds."""


class MujocoEnv(BaseEnv):
    """N worlds of one task; a world whose episode ended starts the next one in the same step.

    ``config.name`` is a task of Gymnasium (``HalfCheetah-v5``), or one that a module under ``imports:`` registered by
    ``@register("mujoco_task", name)``. ``config.env_kwargs`` are its options: ``TaskOptions`` and those of the task.

    Each sub-env has two random generators, one for start states and one for randomisation. With a given seed, the start
    states are therefore those of Gymnasium's env, with and without randomisation.

    Attributes:
        task: The task.
        worlds: The worlds.

    Raises:
        ConfigError: If there is no such task, or its options or its model are not valid.
    """

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        task_class, options = _parse(config)
        self._options = options
        model = load_model(options.xml_file)
        n = config.num_envs
        reads = task_class.fields(options)
        self.worlds = Worlds(model, n, options.frame_skip, reads, _threads(options, config, model))
        self.task = task = task_class(options, model)
        self._scale, bounds = _action_map(options, model, task)
        action_space = gym.spaces.Box(bounds[0].astype(np.float32), bounds[1].astype(np.float32), dtype=np.float32)
        self.worlds.variables = Variables(task.variables(), n)
        self.worlds.start(range(n), *(np.repeat(part[None], n, 0) for part in (task.init_qpos, task.init_qvel)))
        landmark = task.landmark(self.worlds)
        self.worlds.velocity = None if landmark is None else np.zeros(np.shape(landmark))
        widths = _widths(task.observe(self.worlds), n)
        size = sum(widths.values())
        limit = config.max_episode_steps or task_class.time_limit(config.name)
        observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.meta = EnvMeta(
            config.name,
            observation_space,
            action_space,
            n,
            limit,
            action_names=actuator_names(model, action_space.shape),
        )
        self._limit = limit
        self._ages = np.zeros(n, np.int64)
        self._never = np.zeros(n, np.bool_)
        self._generators = [np.random.default_rng() for _ in range(n)]
        self._variations = [np.random.default_rng() for _ in range(n)]
        self._build_variations(size)
        noise = options.randomisation.observation_noise
        self._noise = Noise(noise, self.worlds, widths) if noise else None
        self._all_streams = self._streams(self._variations)
        self._picture: Picture | None = None
        self._failures = 0

    @classmethod
    def check(cls, config: EnvConfig) -> Sequence[Problem]:
        try:
            _parse(config)
        except ConfigError as error:
            return error.problems
        return ()

    def _build_variations(self, observation_size: int) -> None:
        options, worlds = self._options.randomisation, self.worlds
        self._models = RandomModels(options, worlds) if RandomModels.wanted(options) else None
        self._pushes = Pushes(options.push, worlds) if options.push else None
        self._late_actions = (
            Delay(options.action_delay, worlds, worlds.ctrl.shape[1], np.float32)
            if Delay.wanted(options.action_delay)
            else None
        )
        if self._late_actions is not None and self.task.init_ctrl is None:
            worlds.keep_neutral()
        self._late_observations = (
            Delay(options.observation_delay, worlds, observation_size, np.float64)
            if Delay.wanted(options.observation_delay)
            else None
        )
        curriculum = self._options.curriculum
        self._curriculum = Curriculum(curriculum, worlds) if curriculum else None
        self.render_fps = 1.0 / self.worlds.dt
        drawn = (self._models, self._pushes, self._late_actions, self._late_observations)
        self._drawn = [part for part in drawn if part is not None]

    def reset(self, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None) -> EnvRet:
        if seed is not None:
            self._generators = [np.random.default_rng(each) for each in seed]
            self._variations = [np.random.default_rng([each, 1]) for each in seed]
            self._all_streams = self._streams(self._variations)
        if self.purpose == "eval":
            self._curriculum = None
            self.worlds.level[:] = 1.0
        observation = self._begin(list(range(self.meta.num_envs)))
        ret = EnvRet.from_reset(observation, self.meta.num_envs)
        ret.info = self.task.describe(self.worlds)
        return ret

    def step(self, response: PolicyResponse) -> EnvRet:
        worlds, task = self.worlds, self.task
        self._act(response.action_for_env)
        before = task.landmark(worlds)
        before = None if before is None else before.copy()
        worlds.step()
        if before is not None:
            worlds.velocity = (task.landmark(worlds) - before) / worlds.dt
        self._ages += 1
        task.update(worlds, self._all_streams)
        worlds.terminated = terminated = task.terminated(worlds)
        _require_one_per_world("terminated", terminated, self._never.shape)
        if worlds.unstable:
            self._note_unstable()
            if worlds.velocity is not None:
                worlds.velocity[worlds.unstable] = 0.0
            worlds.terminated = terminated = terminated | worlds.is_unstable
        truncated = self._never if self._limit is None else self._ages >= self._limit
        ended = terminated | truncated
        any_ended = 1 in ended.tobytes()
        terms = task.rewards(worlds)
        for name, term in terms.items():
            _require_one_per_world(name, term, self._never.shape)
        if worlds.unstable:
            terms = {name: np.where(worlds.is_unstable, 0.0, term) for name, term in terms.items()}
        self.logged_info = (*terms, "curriculum_level") if self._curriculum else tuple(terms)
        # Terms may be views of arrays that a new start overwrites.
        reward = sum(terms.values())
        info = self._info(terms)
        if self._curriculum is not None:
            info["curriculum_level"] = worlds.level.copy()
            self._curriculum.step(ended, self._succeeded() if any_ended else ended)
        if self._noise is not None:
            self._noise.draw(slice(None), self._all_streams)
        observation, final = self._observe(), None
        if self._late_observations is not None:
            observation = self._late_observations(observation)
        if any_ended:
            # A new start overwrites arrays of which the task may have returned views.
            final, info = observation.copy(), {name: value.copy() for name, value in info.items()}
            observation = self._begin(np.flatnonzero(ended).tolist())
        return EnvRet(observation, reward, terminated, truncated, self._never, final, info)

    def _act(self, action: Array) -> None:
        self.worlds.previous_action, self.worlds.action = self.worlds.action, action
        self.worlds.command = command = self._in_units(action)
        if self._pushes is not None:
            self._pushes.act(self._ages, self._variations)
        if self._late_actions is not None:
            command = self._in_units(self._late_actions(action))
        self.worlds.ctrl[:] = command

    def _in_units(self, action: Array) -> Array:
        """Map actions to the units of the controls."""
        if self._scale is None:
            return action
        centre, half = self._scale
        command: Array = centre + half * action
        return command

    def _info(self, terms: dict[str, Array]) -> dict[str, Array]:
        velocity = {name: self.worlds.velocity[:, i] for i, name in enumerate(self.task.velocity_names)}
        return {**self.task.describe(self.worlds), **velocity, **terms}

    def _succeeded(self) -> Array:
        succeeded = self.task.succeeded(self.worlds)
        _require_one_per_world("succeeded", succeeded, self._never.shape)
        return np.asarray(succeeded & ~self.worlds.is_unstable)

    def _note_unstable(self) -> None:
        """Log which simulations failed, each time that their number has doubled."""
        rows = self.worlds.unstable
        before, self._failures = self._failures, self._failures + len(rows)
        if before.bit_length() < self._failures.bit_length():
            logger.warning(
                "%s: the simulation of sub-env %s became unstable (a position, velocity or acceleration that is not "
                "finite or huge), which ends its episode in a terminal state with reward 0; %d times so far",
                self.meta.name,
                ", ".join(map(str, sorted(rows))),
                self._failures,
            )

    def _begin(self, rows: list[int]) -> Array:
        """Start new episodes in some worlds; return the observations of all worlds."""
        variations = self._streams(self._variations, rows)
        for part in self._drawn:
            part.begin(rows, variations)
        if self._noise is not None:
            self._noise.draw(rows, variations)
        self.worlds.variables.reset(rows)
        qpos, qvel = self.task.start(self._streams(self._generators, rows))
        model = self.worlds.model
        for name, values, width in (("qpos", qpos, model.nq), ("qvel", qvel, model.nv)):
            if np.shape(values) != (len(rows), width):
                raise ShapeError(f"start gave {name} of shape {list(np.shape(values))}, {[len(rows), width]} expected")
        self.worlds.start(rows, qpos, qvel)
        self._ages[rows] = 0
        for last in (self.worlds.action, self.worlds.previous_action, self.worlds.velocity):
            if last is not None:
                last[rows] = 0.0
        observation = self._observe()
        if self._late_actions is not None:
            self._late_actions.fill(rows, self._neutral_actions(rows))
        if self._late_observations is not None:
            self._late_observations.fill(rows, observation[rows])
            observation = self._late_observations.due()
        return observation

    def _observe(self) -> Array:
        observed = self.task.observe(self.worlds)
        observation = np.concatenate(list(observed.values()), axis=1) if isinstance(observed, dict) else observed
        return observation if self._noise is None else observation + self._noise.values

    def _streams(self, generators: list[np.random.Generator], rows: list[int] | None = None) -> Streams:
        worlds = self.worlds
        if rows is None:
            return Streams(generators, worlds.level, range(worlds.num_envs), worlds.variables)
        return Streams([generators[row] for row in rows], worlds.level[rows], rows, worlds.variables)

    def _neutral_actions(self, rows: list[int]) -> Array:
        """Return the actions that hold some worlds at their start positions, [K, nu]."""
        held = self.task.init_ctrl
        if held is None:
            assert self.worlds.neutral is not None
            held = self.worlds.neutral[rows]
        if self._scale is None:
            return held
        offset, scale = self._scale
        actions: Array = np.divide(held - offset, scale, out=np.zeros_like(held), where=scale != 0)
        return actions

    def render(self) -> Array:
        if self._picture is None:
            self._picture = Picture(self.worlds.model, self._options, self.task.camera())
        self.worlds.load(0, self._picture.data)
        return self._picture.draw()

    def close(self) -> None:
        self.worlds.close()
        if self._picture is not None:
            self._picture.close()
            self._picture = None

    def get_state(self) -> dict[str, Any]:
        return {
            "worlds": self.worlds.state.copy(),
            "read": {name: array.copy() for name, array in self.worlds.read.items()},
            "action": self.worlds.action.copy(),
            "ages": self._ages.copy(),
            "variables": self.worlds.variables.get_state(),
            "generators": [rng.bit_generator.state for rng in self._generators],
            "variations": [rng.bit_generator.state for rng in self._variations],
            "drawn": [part.get_state() for part in self._drawn],
            "curriculum": None if self._curriculum is None else self._curriculum.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        try:
            if state["worlds"].shape != self.worlds.state.shape or len(state["drawn"]) != len(self._drawn):
                raise CheckpointError(
                    f"the state is that of another model, version of MuJoCo, or randomisation than {self.meta.name} has"
                )
            self.worlds.state[:] = state["worlds"]
            for name, array in self.worlds.read.items():
                array[:] = state["read"][name]
            self.worlds.action[:] = state["action"]
            self._ages[:] = state["ages"]
            # States of 0.1.0 have no variables.
            self.worlds.variables.set_state(state.get("variables", {}))
            for rngs, states in (
                (self._generators, state["generators"]),
                (self._variations, state["variations"]),
            ):
                for rng, stored in zip(rngs, states, strict=True):
                    rng.bit_generator.state = stored
            for part, stored in zip(self._drawn, state["drawn"], strict=True):
                part.set_state(stored)
            if self._curriculum is not None:
                self._curriculum.set_state(state["curriculum"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the state does not fit {self.meta.name}: {error}") from error


def _parse(config: EnvConfig) -> tuple[type[Task[Any]], TaskOptions]:
    if config.vectorization == "sync":
        raise ConfigError(Problem("env.vectorization", "backend mujoco steps natively: use auto, or gymnasium"))
    task_class = _find_task(config.name)
    return task_class, parse_options(task_class.Options, config.env_kwargs)


def _find_task(name: str) -> type[Task[Any]]:
    try:
        found: type[Task[Any]] = lookup("mujoco_task", name)
    except ConfigError as error:
        hint = " (and other envs of Gymnasium need env.backend: gymnasium)"
        raise ConfigError([replace(each, message=each.message + hint) for each in error.problems]) from error
    return found


def _require_one_per_world(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Refuse a result of a task in another shape, which would be broadcast or fail later with an unclear error."""
    if getattr(value, "shape", ()) != shape:
        raise ShapeError(f"{name} has shape {list(np.shape(value))}, {list(shape)} expected: one value per world")


def _threads(options: TaskOptions, config: EnvConfig, model: Any) -> int:
    """Return the number of threads: this worker's share of the cores, limited by the amount of work."""
    if options.threads != "auto":
        return max(1, options.threads)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    share = max(cores // config.num_workers, int(config.num_cpus))
    work_s = config.num_envs * seconds_per_step(model, options.frame_skip)
    return max(1, min(share, int(work_s / _WORK_PER_THREAD_S)))


def _widths(observed: Any, num_envs: int) -> dict[str, int]:
    """Check that a task observes one row per world; return the width of each term."""
    terms = observed if isinstance(observed, dict) else {"observation": observed}
    for name, term in terms.items():
        shape = np.shape(term)
        if len(shape) != 2 or shape[0] != num_envs:
            of = f" for {name}" if isinstance(observed, dict) else ""
            raise ShapeError(f"observe gave shape {list(shape)}{of}, [{num_envs}, D] expected: one row per world")
    return {name: np.shape(term)[1] for name, term in terms.items()}


def _control_bounds(model: Any) -> tuple[Array, Array]:
    """Return the lowest and the highest value of each control, [nu] each; infinite if the model sets no range."""
    low, high = model.actuator_ctrlrange.T.copy()
    # For a control without a range MuJoCo stores one from 0 to 0, to which a policy would clip its actions.
    free = (model.actuator_ctrllimited == 0) & (low == 0.0) & (high == 0.0)
    low[free], high[free] = -np.inf, np.inf
    return low, high


def _action_map(
    options: TaskOptions, model: Any, task: Task[Any]
) -> tuple[tuple[Array, Array] | None, tuple[Array, Array]]:
    """Return offset and scale of actions, [nu] each (None if actions are controls), and the bounds of actions."""
    if options.scale_actions:
        return _action_scale(model), (-np.ones(model.nu), np.ones(model.nu))
    if options.action_scale is None and options.action_offset is None:
        return None, _control_bounds(model)
    if options.action_offset == "start":
        offset = task.init_ctrl
        if offset is None:
            data = mujoco.MjData(model)
            data.qpos[:] = task.init_qpos
            mujoco.mj_forward(model, data)
            offset = holding_controls(model, data)
    else:
        offset = _by_control(model, options.action_offset or {}, 0.0, "action_offset")
    scale = options.action_scale
    if isinstance(scale, dict):
        scales = _by_control(model, scale, 1.0, "action_scale")
    else:
        scales = np.full(model.nu, 1.0 if scale is None else scale)
    unlimited = np.full(model.nu, np.inf)
    return (offset, scales), (-unlimited, unlimited)


def _by_control(model: Any, values: dict[str, float], default: float, option: str) -> Array:
    names = [_control_name(model, i) for i in range(model.nu)]
    unknown = [name for name in values if name not in names]
    if unknown:
        path = f"env.env_kwargs.{option}."
        message = f"the model has no such actuator; it has {', '.join(names)}"
        raise ConfigError(Problem(path + unknown[0], message, suggestion=nearest_name(unknown[0], names, path)))
    return np.array([values.get(name, default) for name in names])


def _action_scale(model: Any) -> tuple[Array, Array]:
    """Return centre and half width of the control ranges, [nu] each."""
    free = [_control_name(model, i) for i in range(model.nu) if not model.actuator_ctrllimited[i]]
    if free:
        raise ConfigError(
            Problem(
                "env.env_kwargs.scale_actions",
                f"the control of {', '.join(free)} has no range to scale actions to: set ctrlrange in the model",
            )
        )
    low, high = model.actuator_ctrlrange.T
    return (low + high) / 2, (high - low) / 2


def _control_name(model: Any, control: int) -> str:
    # From MuJoCo 4 on, an actuator may have several controls.
    firsts = getattr(model, "actuator_ctrladr", range(model.nu))
    return model.actuator(int(np.searchsorted(firsts, control, "right")) - 1).name or str(control)
