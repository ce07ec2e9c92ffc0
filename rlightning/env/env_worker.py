"""One env in its worker: its values are checked and copied both ways, and its episodes are counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

from rlightning.config import EnvConfig
from rlightning.env import state as plain_state
from rlightning.env.arrays import Leaf, all_finite, any_true, checked, map_parts, no_choice, row_leaves
from rlightning.env.base_env import BaseEnv
from rlightning.env.episodes import Episode, EpisodeCounter
from rlightning.env.faults import FaultKind
from rlightning.env.seeding import Purpose, sub_env_seeds
from rlightning.env.text import encode_rows
from rlightning.errors import CheckpointError, ProtocolError, ShapeError, WorkerError
from rlightning.observability.timer import Span, Timer
from rlightning.runtime.generators import global_generators, seed_global_generators, set_global_generators
from rlightning.types import EnvMeta, EnvRet, PolicyResponse, Tree
from rlightning.types.tree import tree_map

Array = np.ndarray[Any, Any]

_FLOAT32 = np.dtype(np.float32)
_BOOL = np.dtype(np.bool_)
_CODE_ERRORS = (NameError, AttributeError, TypeError, ImportError, NotImplementedError, ShapeError)
"""Exceptions of code with a mistake, and not of a device that is missing for a moment."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The state of a worker after a failure somewhere in the run.

    Attributes:
        steps: Steps that it made since it was built.
        fault: The fault of its env; None if it has none.
        message: The fault in words.
        is_code_error: Whether it failed before its first step by a mistake in its code, so that it would fail again.
    """

    steps: int
    fault: FaultKind | None = None
    message: str = ""
    is_code_error: bool = False


class _NotFinite(WorkerError):
    """The env returned a number that is not finite."""


class EnvWorker:
    """Owns one env: seeds it, checks what it returns, copies arrays both ways, and counts episodes.

    Args:
        env_class: The env to build.
        config: Its configuration.
        index: Index of the worker among all env workers of the run.
        seed: The run's seed.
        purpose: Training or evaluation, which never share seeds.
        generation: Episodes of two generations differ; a worker that replaces another one gets the next generation.

    Attributes:
        name: Role and index, such as ``env[3]``.

    Raises:
        ShapeError: If the env has another number of rows than ``config.num_envs``.
        ProtocolError: If the env sets no ``meta``.
    """

    def __init__(
        self,
        env_class: type[BaseEnv],
        config: EnvConfig,
        index: int,
        seed: int,
        purpose: Purpose = "train",
        generation: int = 0,
    ) -> None:
        self.name = f"env[{index}]" if purpose == "train" else f"{purpose}_env[{index}]"
        self._index, self._text = index, config.text
        try:
            self._env = env_class(config)
        except SystemExit as error:  # it would end the run without a message
            raise WorkerError(f"{config.name}: SystemExit: {error}", self.name, "__init__") from error
        self._env.purpose = purpose
        if not isinstance(getattr(self._env, "meta", None), EnvMeta):
            raise ProtocolError(f"{env_class.__name__} must set self.meta to an EnvMeta in its constructor")
        self._meta = replace(self._env.meta, rate_hz=self._env.meta.rate_hz or self._env.render_fps)
        self._num_envs = n = self._meta.num_envs
        if n != config.num_envs:
            raise ShapeError(f"{env_class.__name__} has {n} sub-envs and env.num_envs is {config.num_envs}")
        self._seed, self._purpose, self._generation = seed, purpose, generation
        self._column_shape = (n,)
        self._observation_leaves = row_leaves(self._meta.observation_space, n)
        self._action_leaves = row_leaves(self._meta.action_space, n)
        self._timer = Timer()
        self._last: EnvRet | None = None
        self._is_seeded = False
        self._made = 0  # steps of this object; those of ``_counter`` continue from a restored state
        self._fault: tuple[FaultKind, WorkerError] | None = None
        self._counter = EpisodeCounter(config, index, self.name, n)
        self._info_sums: dict[str, float] = {}
        self._info_steps = 0

    def get_meta(self) -> EnvMeta:
        """Return the description of the env."""
        return self._meta

    def reset(self, reseed: bool = False) -> EnvRet:
        """Start a new episode in every row.

        Args:
            reseed: Whether to play the episodes of the first reset again; only the first reset seeds the env otherwise.
        """
        seeds = self._seeds() if reseed or not self._is_seeded else None
        if seeds is not None and reseed and self._purpose == "eval":
            # For envs that draw from them; ``PolicyGroup.evaluating`` restores them for training.
            seed_global_generators(seeds)
        try:
            with self._timer.measure("reset"):
                first = self._env.reset(seeds)
                last = EnvRet.from_reset(first.observation, self._num_envs)
                last.info = first.info
                ret = self._own(last)
        except (Exception, SystemExit) as error:  # an env may not end the program
            self._fail(error, "reset")
        self._is_seeded = True
        self._last = last
        self._fault = None
        self._counter.begin()
        return ret

    def restart(self, generation: int) -> EnvRet:
        """Start the episodes of another generation."""
        self._generation = generation
        return self.reset(reseed=True)

    def step(self, response: PolicyResponse) -> EnvRet:
        """Make one step in every row.

        Args:
            response: The response of a policy; the env gets a copy of the action in the action space's dtype.

        Raises:
            ProtocolError: If ``reset`` was not called before.
            WorkerError: If the env fails or a value is wrong; the message has worker, sub-env and step.
        """
        if self._last is None:
            raise ProtocolError(f"{self.name}: call reset before step")
        action = response.action if response.env_action is None else response.env_action
        is_valid = False
        try:
            with self._timer.measure("step"):
                owned = self._own_action(action, self._action_leaves)
                is_valid = True
                last = self._env.step(PolicyResponse(owned))
                ret = self._own(last)
        except (Exception, SystemExit) as error:
            self._fail(error, "step", is_fault=is_valid)  # an invalid action is a fault of the policy
        self._last = last
        self._made += 1
        self._counter.add(ret)
        if self._env.logged_info:
            self._add_info(ret)
        return ret

    def current(self) -> EnvRet:
        """Return the result of the last reset or step again, for the step after ``set_state``.

        Raises:
            ProtocolError: If there is none.
        """
        if self._last is None:
            raise ProtocolError(f"{self.name}: call reset first")
        return self._own(self._last)

    def report(self) -> WorkerReport:
        """Report, after a failure somewhere in the run, whether this env failed."""
        if self._fault is None:
            return WorkerReport(self._made)
        kind, error = self._fault
        is_code_error = not self._made and isinstance(error.__cause__, _CODE_ERRORS)
        return WorkerReport(self._made, kind, error.message, is_code_error)

    def raise_fault(self) -> None:
        """Raise the fault of the env again, if it has one."""
        if self._fault is not None:
            raise self._fault[1]

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in the order of their ends."""
        return self._counter.pop()

    def cut_episodes(self, length: int) -> list[int]:
        """Count the running episodes of at least ``length`` steps as truncated; the env itself is not reset.

        Returns:
            Their rows.
        """
        return self._counter.cut(length)

    def pop_info(self) -> tuple[dict[str, float], int]:
        """Return the sums of ``logged_info`` since the last call, and the number of their terms."""
        sums, steps = self._info_sums, self._info_steps * self._num_envs
        self._info_sums, self._info_steps = {}, 0
        return sums, steps

    def render(self) -> Array | None:
        """Draw the first row: [H, W, 3] uint8; None where the env cannot be drawn."""
        try:
            return self._env.render()
        except SystemExit as error:
            self._fail(error, "render", is_fault=False)

    def close(self) -> None:
        """Close the env; may be called twice."""
        try:
            self._env.close()
        except (Exception, SystemExit) as error:
            self._fail(error, "close", is_fault=False)

    def record_spans(self) -> None:
        """Record, from now on, the times of resets and steps."""
        self._timer.record_spans()

    def take_spans(self) -> list[Span]:
        """Return the spans that were recorded since the last call."""
        return self._timer.take_spans()

    def get_state(self) -> dict[str, Any] | None:
        """Describe env and counters, so that a new worker continues bit for bit the same after ``set_state``.

        Returns:
            Plain data that a checkpoint can hold, with the state of the global generators; None if the env cannot be
            stored.

        Raises:
            ProtocolError: If the env was never reset.
        """
        if self._last is None:
            raise ProtocolError(f"{self.name}: call reset before get_state")
        env = self._env.get_state()
        last = plain_state.capture(_as_dict(self._own(self._last)))
        if env is None or last is None:
            return None
        return {
            "env_name": self._meta.name,
            "env": env,
            "last": last,
            "generation": self._generation,
            "global_generators": global_generators(),
            **self._counter.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> EnvRet:
        """Continue from a state of ``get_state``.

        Returns:
            The result of the last reset or step, for the next action.

        Raises:
            CheckpointError: If the state is that of another env.
        """
        if state["env_name"] != self._meta.name or len(state["returns"]) != self._num_envs:
            raise CheckpointError(
                f"{self.name} runs {self._num_envs} sub-envs of {self._meta.name}, and the state is that of "
                f"{len(state['returns'])} of {state['env_name']}"
            )
        # Many envs create in their first reset the objects that a state is written into.
        self._env.reset(self._seeds())
        self._env.set_state(state["env"])
        self._is_seeded = True
        self._last = EnvRet(**plain_state.restore(state["last"]))
        self._generation = state["generation"]
        self._counter.set_state(state)
        if "global_generators" in state:  # earlier checkpoints had none
            # After the reset above, since the env may draw from them.
            set_global_generators(state["global_generators"])
        return self.current()

    def _seeds(self) -> list[int]:
        return sub_env_seeds(self._seed, self._purpose, self._index, self._generation, self._num_envs)

    def _add_info(self, ret: EnvRet) -> None:
        sums, info = self._info_sums, ret.info
        for name in self._env.logged_info:
            if name not in info:
                raise WorkerError(f"the env logs {name!r} and its info has no such name", self.name, "step")
            sums[name] = sums.get(name, 0.0) + float(info[name].sum())
        self._info_steps += 1

    def _fail(self, error: Exception | SystemExit, method: str, *, is_fault: bool = True) -> NoReturn:
        """Raise an error that names env, worker and step; an exception of the env becomes its cause.

        Args:
            error: The exception.
            method: The method that it ended.
            is_fault: Whether it is a fault of the env, which is reported.
        """
        is_ours = isinstance(error, WorkerError | ShapeError)
        text = getattr(error, "message", str(error)) if is_ours else f"{type(error).__name__}: {error}"
        step = f" (step {self._counter.steps + 1} of this worker)" if method == "step" else ""
        failure = WorkerError(f"{self._meta.name}: {text}{step}", self.name, method)
        failure.__cause__ = (error.__cause__ or error) if is_ours else error
        if is_fault:
            self._fault = ("not_finite" if isinstance(error, _NotFinite) else "raised"), failure
        raise failure from failure.__cause__

    # All values that the env gets and returns are checked and copied below.

    def _own_action(self, action: Tree, leaves: Tree) -> Tree:
        if type(leaves) is not Leaf:
            return map_parts(self._own_action, action, leaves, "action")
        if type(action) is not np.ndarray or action.dtype is not leaves.dtype or action.shape != leaves.shape:
            action = checked(action, leaves.shape, leaves.dtype, f"action{leaves.path}")
        owned = action.astype(leaves.dtype, "C")
        if not all_finite(owned):
            raise WorkerError(
                f"action{leaves.path} of sub-env {_bad_row(owned)} is not finite: has the policy diverged?"
            )
        _require_choices(owned, leaves, "action", self._meta.action_space)
        return owned

    def _own(self, last: EnvRet) -> EnvRet:
        if type(last) is not EnvRet:
            raise WorkerError(f"the env returned a {type(last).__name__} and not an EnvRet")
        observation = self._own_rows(last.observation, self._observation_leaves, "observation")
        reward = self._own_column(last.reward, _FLOAT32, "reward")
        if not all_finite(reward):
            row = _bad_row(reward)
            raise _NotFinite(f"reward of sub-env {row} is {reward[row]}, which is not finite")
        terminated = self._own_column(last.terminated, _BOOL, "terminated")
        truncated = self._own_column(last.truncated, _BOOL, "truncated")
        is_reset = self._own_column(last.is_reset, _BOOL, "is_reset")
        ret = EnvRet(observation, reward, terminated, truncated, is_reset)
        if any_true(terminated) or any_true(truncated):
            ret.final_observation = self._own_final(last.final_observation, ret.ended, observation)
        if any_true(is_reset):
            reset_and_ended = is_reset & ret.ended
            if any_true(reset_and_ended):
                row = int(np.argmax(reset_and_ended))
                raise WorkerError(f"sub-env {row} has is_reset and ended: no step led to a row that was reset")
            reward[is_reset] = 0.0
            ret.is_first = is_reset  # requests copy it
        if ret.final_observation is not None and not self._env.resets_with_next_step:
            ret.is_first = is_reset | ret.ended
        if last.info:
            ret.info = {key: self._own_info(value, key) for key, value in last.info.items()}
        return ret

    def _own_rows(self, rows: Tree, leaves: Tree, what: str) -> Tree:
        if type(leaves) is not Leaf:
            return map_parts(lambda part, leaf: self._own_rows(part, leaf, what), rows, leaves, what)
        if type(rows) is not np.ndarray or rows.dtype is not leaves.dtype or rows.shape != leaves.shape:
            rows = checked(rows, leaves.shape, leaves.handed_out, f"{what}{leaves.path}")
        owned = rows.astype(leaves.handed_out, "C")
        if not all_finite(owned):
            raise _NotFinite(f"{what}{leaves.path} of sub-env {_bad_row(owned)} is not finite")
        _require_choices(owned, leaves, what, self._meta.observation_space)
        return owned

    def _own_column(self, column: Any, dtype: np.dtype[Any], what: str) -> Array:
        if type(column) is not np.ndarray or column.dtype is not dtype or column.shape != self._column_shape:
            column = checked(column, self._column_shape, dtype, what).astype(dtype)
        owned: Array = column.copy()
        return owned

    def _own_final(self, final: Tree | None, ended: Array, observation: Tree) -> Tree:
        """Copy the last observations of the rows that ended; the other rows repeat the observation."""
        if final is None:
            row = int(np.argmax(ended))
            raise WorkerError(f"the episode of sub-env {row} ended and final_observation is None")

        def pick(current: Array, leaf: Leaf, last: Any) -> Array:
            what = f"final_observation{leaf.path}"
            owned = current.copy()
            owned[ended] = checked(last, leaf.shape, leaf.handed_out, what)[ended]
            if not all_finite(owned):
                raise _NotFinite(f"{what} of sub-env {_bad_row(owned)} is not finite")
            _require_choices(owned, leaf, "final_observation", self._meta.observation_space)
            return owned

        return tree_map(pick, observation, self._observation_leaves, final)

    def _own_info(self, value: Any, key: str) -> Array:
        try:
            owned = np.array(value)
        except ValueError as error:
            raise ShapeError(f"info[{key!r}] is no array: {error}") from error
        if owned.ndim == 0 or len(owned) != self._num_envs:
            raise ShapeError(f"info[{key!r}] has shape {list(owned.shape)}, [{self._num_envs}, ...] expected")
        if owned.dtype.kind in "OU" and owned.ndim == 1 and all(isinstance(each, str) for each in owned.tolist()):
            return encode_rows(owned.tolist(), self._text, f"info[{key!r}]")
        if owned.dtype.kind not in "biufc":
            raise ShapeError(f"info[{key!r}] holds {owned.dtype}; numbers, or one text per sub-env, expected")
        return owned


def _require_choices(rows: Array, leaf: Leaf, what: str, space: Any) -> None:
    if leaf.choices is not None and (wrong := no_choice(rows, leaf)) is not None:
        row = int(np.argwhere(wrong)[0][0])
        raise WorkerError(f"{what}{leaf.path} of sub-env {row} is {rows[row]}, which is not in {space}")


def _bad_row(array: Array) -> int:
    return int(np.argwhere(~np.isfinite(array))[0][0])


def _as_dict(ret: EnvRet) -> dict[str, Any]:
    return {name: getattr(ret, name) for name in EnvRet.__slots__}
