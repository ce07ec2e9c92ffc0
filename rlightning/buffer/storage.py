"""The part of a data buffer that lives in one worker: a block of T steps of N sub-envs, each written in place."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from rlightning.buffer.assignment import blocks
from rlightning.errors import NotEnoughData, ProtocolError, ShapeError
from rlightning.observability.timer import Span, Timer
from rlightning.types import EnvRet, PolicyResponse, Tree
from rlightning.types.fragment import Fragment
from rlightning.types.tensordict import TensorDict
from rlightning.types.tree import to_host, tree_leaves, tree_map

RESERVED = ("observation", "next_observation", "action", "reward", "terminated", "truncated", "valid", "version")
"""Fields of every block; the extras of a response come beside them."""
_FLAGS = {"terminated": False, "truncated": False, "valid": True}
"""Flags of every block, and what they are in a row where nothing happens."""
_DTYPES = {"reward": np.float32, **dict.fromkeys(_FLAGS, np.bool_), "version": np.int64}
"""Of the fields that are alike in every block; that of the others is the one in which they come."""
_End = tuple[int, Tree, Any]
"""Where episodes ended: the row, the true last observation, and the sub-envs, [N_worker] bool."""
_NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was held of a fragment that is not whole.

    Attributes:
        rows: Its rows, an open one among them.
        transitions: Its valid whole transitions.
    """

    rows: int
    transitions: int


class RolloutBlock:
    """On-policy data of one epoch, ``[T, N, ...]``; the sub-envs of the env workers of a shard lie side by side.

    A row is a whole transition: what was seen, what was done, what came of it, and what was truly seen next. It is
    opened by ``add`` and closed by the next ``add`` or by ``truncate``, since the outcome comes with the next result.
    The rows of an env worker up to a ``truncate`` are a fragment: it is whole then, and until then ``drop`` removes it.
    """

    def __init__(self, capacity: int, num_envs: Sequence[int], env_ids: Sequence[int] | None = None) -> None:
        """Make an empty block; memory is taken with the first step, when shapes and dtypes are known.

        Args:
            capacity: T, steps per sub-env.
            num_envs: Sub-envs of each env worker.
            env_ids: The env workers, in the order of their columns; None means 0, 1, and so on.
        """
        self.capacity = capacity
        self._env_ids = list(range(len(num_envs)) if env_ids is None else env_ids)
        self._indices = {env_id: index for index, env_id in enumerate(self._env_ids)}
        stops = np.cumsum(num_envs).tolist()
        self._slices = [slice(stop - count, stop) for stop, count in zip(stops, num_envs, strict=True)]
        self._width = stops[-1]
        self._rows = [0] * len(num_envs)
        self._whole = [0] * len(num_envs)  # rows up to the last truncation; of later ones, the last row is open
        self._ends: list[list[_End]] = [[] for _ in num_envs]  # of episodes, in rows that are not whole yet
        self._references: list[int] = []  # to each array of the memory, where nothing else has any
        self._fields: dict[str, Tree] = {}
        self._columns: list[dict[str, Tree]] = []
        self._names: set[str] = set()
        self._timer = Timer()
        self._is_traced = False

    def add_all(self, env_ids: Sequence[int], *env_rets_and_responses: Any) -> None:
        """Add one step of some env workers.

        Args:
            env_ids: The env workers.
            *env_rets_and_responses: First what each saw, then what was done there, both in the order of the ids.
        """
        count = len(env_ids)
        # Not worth in every step what measuring costs.
        with self._timer.measure("store") if self._is_traced else _NOTHING:
            for number, env_id in enumerate(env_ids):
                self.add(env_id, env_rets_and_responses[number], env_rets_and_responses[count + number])

    def add(self, env_id: int, env_ret: EnvRet, response: PolicyResponse) -> None:
        """Close the open row of an env worker by what came of it, and open the next one.

        Args:
            env_id: The env worker.
            env_ret: What was seen, [N_worker, ...].
            response: What was done there, [N_worker, ...].

        Raises:
            ProtocolError: If the block is full.
            ShapeError: If a field has another shape, or numbers of another kind, than in the steps before.
        """
        index = self._indices[env_id]
        row = self._rows[index]
        if row == self.capacity:
            raise ProtocolError(
                f"the block is full after {row} steps of env worker {env_id}: sample and clear it first"
            )
        if row > self._whole[index]:
            self._close(index, row - 1, env_ret)
        if not self._fields:
            self._allocate(env_ret, response)
        columns, extras = self._columns[index], response.extras
        if extras.keys() != self._names:
            raise ShapeError(f"a response has the extras {sorted(extras)}, earlier ones {sorted(self._names)}")
        try:
            _write(columns["observation"], row, env_ret.observation)
            _write(columns["action"], row, response.action)
            for name in self._names:
                _write(columns[name], row, extras[name])
        except (ValueError, KeyError, TypeError) as error:
            raise _misfit(row, self._env_ids[index], error) from error
        columns["version"][row] = response.version
        self._rows[index] = row + 1

    def _close(self, index: int, row: int, env_ret: EnvRet) -> None:
        columns = self._columns[index]
        try:
            _write(columns["reward"], row, env_ret.reward)
            # Most steps raise no flag, and the block lies there without any.
            if _raises_flags(env_ret):
                _write(columns["terminated"], row, env_ret.terminated)
                _write(columns["truncated"], row, env_ret.truncated)
                _write(columns["valid"], row, ~env_ret.is_reset)
        except (ValueError, KeyError, TypeError) as error:
            raise _misfit(row, self._env_ids[index], error) from error
        if env_ret.final_observation is not None:
            self._ends[index].append((row, env_ret.final_observation, env_ret.ended))

    def truncate(self, env_id: int, env_ret: EnvRet, steps: int | None = None) -> bool:
        """Close the open row of an env worker by its latest result, so that its fragment is whole.

        Args:
            env_id: The env worker.
            env_ret: Its latest result.
            steps: How many steps the fragment must have; None takes any number.

        Returns:
            Whether it is whole; with another number of steps, of which some were lost on the way, nothing is closed.
        """
        index = self._indices[env_id]
        start, stop = self._whole[index], self._rows[index]
        if steps is not None and stop - start != steps:
            return False
        if start == stop:
            return True
        self._close(index, stop - 1, env_ret)
        following = self._columns[index]["next_observation"]
        later = tree_map(lambda leaf: leaf[start + 1 : stop], self._columns[index]["observation"])
        row = stop - 1
        try:
            _write(following, slice(start, row), later)
            _write(following, row, env_ret.observation)
            for row, final_observation, ended in self._ends[index]:
                _write(following, row, final_observation, ended)
        except (ValueError, KeyError, TypeError) as error:
            raise _misfit(row, self._env_ids[index], error) from error
        self._ends[index].clear()
        self._whole[index] = stop
        return True

    def drop(self, env_ids: Sequence[int]) -> dict[int, Dropped]:
        """Forget the rows of some env workers since their last truncations, and count them."""
        dropped = {}
        for env_id in env_ids:
            index = self._indices[env_id]
            start, stop = self._whole[index], self._rows[index]
            lost = int(self._columns[index]["valid"][start : stop - 1].sum()) if start < stop else 0
            dropped[env_id] = Dropped(stop - start, lost)
            self._forget(index, start)
        return dropped

    def take(self, env_id: int) -> Fragment:
        """Remove the fragment of an env worker, with copies of the fields of ``sample``, [T, N_worker, ...].

        Raises:
            ProtocolError: If there is none, or it is not whole.
        """
        index = self._indices[env_id]
        stop = self._rows[index]
        if not 0 < stop == self._whole[index]:
            raise ProtocolError(f"env worker {env_id} has no whole fragment: call truncate_episodes first")
        fields: dict[str, Tree] = tree_map(lambda leaf: leaf[:stop].copy(), self._columns[index])
        self._forget(index, 0)
        return Fragment(env_id, fields)

    def _forget(self, index: int, start: int) -> None:
        for name, flag in _FLAGS.items() if self._fields else ():
            self._columns[index][name][start : self._rows[index]] = flag
        self._rows[index] = self._whole[index] = start
        self._ends[index].clear()

    def add_fragment(self, fragment: Fragment) -> None:
        """Write whole transitions of an env worker; ``valid`` and ``version`` may be missing.

        Raises:
            NotEnoughData: If too few rows are free.
            ProtocolError: If a row is open.
            ShapeError: If fields are missing, or are others or of other shapes than those of the block.
        """
        with self._timer.measure("store"):
            self._add_fragment(fragment.env_id, fragment.fields)

    def _add_fragment(self, env_id: int, fields: Mapping[str, Tree]) -> None:
        index = self._indices[env_id]
        start, count = self._rows[index], len(fields["reward"])
        if start != self._whole[index]:
            raise ProtocolError(f"env worker {env_id} has an open row: call truncate_episodes before add_episode")
        if start + count > self.capacity:
            raise NotEnoughData(
                f"{count} steps do not fit: {self.capacity - start} rows of env worker {env_id} are free"
            )
        shape = fields["reward"].shape
        given = {"valid": np.ones(shape, np.bool_), "version": np.full(shape, -1), **fields}
        wanted = {*self._fields, *RESERVED}
        if not wanted <= given.keys() or (self._fields and given.keys() != wanted):
            raise ShapeError(f"the episode has the fields {sorted(given)}, the block {sorted(wanted)}")
        if not self._fields:
            self._take_memory(tree_map(lambda leaf: leaf[0], given))
        try:
            for name, value in given.items():
                _write(self._columns[index][name], slice(start, start + count), value)
        except (ValueError, KeyError, TypeError) as error:
            raise _misfit(start, env_id, error) from error
        self._rows[index] = self._whole[index] = start + count

    def sample(self) -> TensorDict:
        """Return all steps, as views that may be kept and written into: ``clear`` takes other memory then.

        Returns:
            ``[T, N]`` with the fields ``observation``, ``next_observation`` (the true next one, also where an episode
            ended), ``action``, ``reward`` (float32), ``terminated``, ``truncated``, ``valid`` (bool; False in rows that
            an autoreset spent), ``version`` (int64), and the extras of the responses.

        Raises:
            NotEnoughData: If there is nothing, or the env workers are at different steps.
            ProtocolError: If a row is open.
        """
        if min(self._rows) == 0:
            raise NotEnoughData(f"asked for a block, held: {self._rows} steps by env worker")
        if self._rows != self._whole:
            raise ProtocolError("the last step has no outcome yet: call truncate_episodes with the latest env results")
        if len(set(self._rows)) > 1:
            raise NotEnoughData(f"env workers are at different steps {self._rows}: collect until all are equal")
        length = self._rows[0]
        with self._timer.measure("sample"):
            tensors = tree_map(lambda leaf: torch.from_numpy(leaf[:length]), self._fields)
            return TensorDict(tensors, batch_size=[length, self._width])

    def sample_pieces(self, count: int) -> list[TensorDict]:
        """Return the data in pieces of whole sub-envs, ``[T, N']`` each; some have none where there are too few."""
        data = self.sample()
        return [data[:, block.start : block.stop] for block in blocks(data.batch_size[1], count)]

    def clear(self) -> None:
        """Forget all steps; the memory is used again, unless what ``sample`` returned is still in use."""
        is_held = [now != own for now, own in zip(_references_to(self._fields), self._references, strict=True)]
        if any(is_held):
            each = iter(is_held)
            self._use(tree_map(lambda array: np.empty_like(array) if next(each) else array, self._fields))
        elif self._fields:
            self._lower_flags()  # also where none was up: the views may have been written into
        self._rows, self._whole = [0] * len(self._rows), [0] * len(self._rows)
        self._ends = [[] for _ in self._rows]

    def _lower_flags(self) -> None:
        for name, flag in _FLAGS.items():
            self._fields[name].fill(flag)

    def size(self) -> int:
        """Count the valid transitions that are whole, those of fragments that are not among them."""
        held = zip(self._rows, self._whole, self._columns, strict=False)
        return sum(int(columns["valid"][: max(rows - 1, whole)].sum()) for rows, whole, columns in held)

    def versions(self) -> tuple[int, int]:
        """Return the oldest and the newest version of weights that acted in the block."""
        held = [columns["version"][:rows] for rows, columns in zip(self._rows, self._columns, strict=False) if rows]
        if not held:
            raise NotEnoughData("the block is empty")
        return min(int(rows.min()) for rows in held), max(int(rows.max()) for rows in held)

    def record_spans(self) -> None:
        """Record, from now on, when data are stored and sampled."""
        self._is_traced = True
        self._timer.record_spans()

    def take_spans(self) -> list[Span]:
        """Return what was recorded since the last call."""
        return self._timer.take_spans()

    def _allocate(self, env_ret: EnvRet, response: PolicyResponse) -> None:
        clash = [name for name in response.extras if name in RESERVED]
        if clash:
            raise ShapeError(f"the extras {clash} have names of the block's own fields; choose others")
        if unnamed := [name for name in response.extras if not isinstance(name, str)]:
            raise ShapeError(f"the names of the extras {unnamed} are no strings")
        self._take_memory(
            {
                "observation": env_ret.observation,
                "next_observation": env_ret.observation,
                "action": response.action,
                **dict.fromkeys(_DTYPES, np.zeros(1)),
                **response.extras,
            }
        )

    def _take_memory(self, row: dict[str, Tree]) -> None:
        """Make arrays for rows that look like ``row``, whose leaves are [N', ...]."""
        if unnamed := [name for name, tree in row.items() if _has_sequence(tree)]:
            raise ShapeError(f"{unnamed} are tuples or lists of arrays; give the parts names, as a dict")

        def rows_like(name: str, leaf: Any) -> Any:
            array = np.asarray(to_host(leaf))
            # Not another object of an equal dtype: steps are compared by identity.
            own = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
            dtype = np.dtype(_DTYPES.get(name, own))
            if not _is_known_to_torch(dtype):
                raise ShapeError(f"{name} has dtype {dtype}, and there are no tensors of it")
            return np.zeros((self.capacity, self._width, *array.shape[1:]), dtype)

        self._use({name: tree_map(partial(rows_like, name), tree) for name, tree in row.items()})

    def _use(self, fields: dict[str, Tree]) -> None:
        """Write into other arrays from now on, [T, N, ...] by name; what they hold is of no meaning."""
        self._fields = fields
        self._columns = [tree_map(lambda leaf, at=at: leaf[:, at], fields) for at in self._slices]
        self._names = fields.keys() - set(RESERVED)
        self._references = _references_to(fields)
        self._lower_flags()


def _references_to(fields: dict[str, Tree]) -> list[int]:
    """Count the references to each array; a view has one, and so has a tensor of it as long as it lives."""
    return [sys.getrefcount(array) for array in tree_leaves(fields)]


def _is_known_to_torch(dtype: np.dtype[Any]) -> bool:
    try:
        torch.from_numpy(np.empty(0, dtype))
    except TypeError:
        return False
    return True


def _has_sequence(tree: Tree) -> bool:
    return isinstance(tree, tuple | list) or (isinstance(tree, dict) and any(map(_has_sequence, tree.values())))


def _write(column: Tree, row: int | slice, value: Tree, only: Any = ...) -> None:
    """Write into the rows of one env worker; nothing is broadcast and no number changes its kind.

    Args:
        column: Arrays [T, N_worker, ...].
        row: A row, or a slice of rows.
        value: Arrays of that many rows.
        only: Where to write, [N_worker] bool; everywhere by default.
    """
    if type(column) is np.ndarray:
        target = column[row]
        if type(value) is not np.ndarray or value.dtype is not target.dtype or value.shape != target.shape:
            value = np.asarray(to_host(value))
            if value.shape != target.shape:
                raise ValueError(f"got shape {list(value.shape)}, expected {list(target.shape)}")
            if not np.can_cast(value.dtype, target.dtype, "same_kind"):
                raise ValueError(f"got {value.dtype}, the block holds {target.dtype}")
        if only is ...:
            target[...] = value
        else:
            target[only] = value[only]
    elif isinstance(column, dict) and (not isinstance(value, dict) or column.keys() != value.keys()):
        got = f"the parts {sorted(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise ValueError(f"got {got}, expected the parts {sorted(column)}")
    else:
        tree_map(lambda part, given: _write(part, row, given, only), column, value)


def _misfit(row: int, env_id: int, error: Exception) -> ShapeError:
    return ShapeError(f"step {row} of env worker {env_id} does not fit the block: {error}")


def _raises_flags(env_ret: EnvRet) -> bool:
    """Return whether an episode ended or a row was reset, anywhere."""
    terminated, truncated, is_reset = env_ret.terminated, env_ret.truncated, env_ret.is_reset
    if type(terminated) is type(truncated) is type(is_reset) is np.ndarray:
        return 1 in terminated.tobytes() or 1 in truncated.tobytes() or 1 in is_reset.tobytes()
    return True
