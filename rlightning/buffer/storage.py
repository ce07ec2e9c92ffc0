"""A preallocated block of T steps of N sub-envs: each step is written in place, and nothing is an object of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from rlightning.errors import NotEnoughData, ProtocolError, ShapeError
from rlightning.types import EnvRet, PolicyResponse, Tree
from rlightning.types.tree import to_numpy, tree_map

RESERVED = ("observation", "next_observation", "action", "reward", "terminated", "truncated", "valid", "version")
"""Fields of every block; the extras of a response come beside them."""


class RolloutBlock:
    """On-policy data of one epoch, ``[T, N, ...]``; the sub-envs of all env workers lie side by side.

    A row is a whole transition: what was seen, what was done, what came of it, and what was truly seen next. It is
    opened by ``add`` and closed by the next ``add`` or by ``truncate``, since the outcome comes with the next result.
    Env workers may be at different steps.
    """

    def __init__(self, capacity: int, num_envs: Sequence[int]) -> None:
        """Make an empty block; memory is taken with the first step, when shapes and dtypes are known.

        Args:
            capacity: T, steps per sub-env.
            num_envs: Sub-envs of each env worker, by env id.
        """
        self.capacity = capacity
        stops = np.cumsum(num_envs).tolist()
        self._columns = [slice(stop - count, stop) for stop, count in zip(stops, num_envs, strict=True)]
        self._width = stops[-1]
        self._rows = [0] * len(num_envs)
        self._closed = [0] * len(num_envs)
        self._fields: dict[str, Tree] = {}
        self._names: tuple[str, ...] = ()

    def add(self, env_id: int, env_ret: EnvRet, response: PolicyResponse) -> None:
        """Close the open row of an env worker by what came of it, and open the next one.

        Args:
            env_id: The env worker.
            env_ret: What was seen, [N_worker, ...].
            response: What was done there, [N_worker, ...].

        Raises:
            ProtocolError: If the block is full.
            ShapeError: If a field has another shape than in the steps before.
        """
        row, columns = self._rows[env_id], self._columns[env_id]
        if row > self._closed[env_id]:
            self._close(env_id, env_ret)
        if row == self.capacity:
            raise ProtocolError(
                f"the block is full after {row} steps of env worker {env_id}: sample and clear it first"
            )
        if not self._fields:
            self._allocate(env_ret, response)
        if tuple(response.extras) != self._names:
            raise ShapeError(f"a response has the extras {list(response.extras)}, earlier ones {list(self._names)}")
        fields = self._fields
        try:
            _write(fields["observation"], row, columns, env_ret.observation)
            _write(fields["action"], row, columns, response.action)
            for name in self._names:
                _write(fields[name], row, columns, response.extras[name])
        except (ValueError, KeyError) as error:
            raise ShapeError(f"step {row} of env worker {env_id} does not fit the block: {error}") from error
        fields["version"][row, columns] = response.version
        self._rows[env_id] = row + 1

    def truncate(self, env_id: int, env_ret: EnvRet) -> None:
        """Close the open row of an env worker, so that the learner can take the block."""
        if self._rows[env_id] > self._closed[env_id]:
            self._close(env_id, env_ret)

    def add_episode(self, env_id: int, episode: TensorDict) -> None:
        """Write consecutive whole transitions of an env worker.

        Args:
            env_id: The env worker.
            episode: The fields of ``sample``, [T', N_worker, ...]; ``valid`` and ``version`` may be missing.

        Raises:
            NotEnoughData: If fewer than T' rows are free.
        """
        start, count = self._rows[env_id], episode.batch_size[0]
        if start != self._closed[env_id]:
            raise ProtocolError(f"env worker {env_id} has an open row: call truncate_episodes before add_episode")
        if start + count > self.capacity:
            raise NotEnoughData(
                f"{count} steps do not fit: {self.capacity - start} rows of env worker {env_id} are free"
            )
        given: dict[str, Any] = to_numpy(episode.to_dict())
        filler = np.ones(episode.batch_size, np.bool_)
        given = {"valid": filler, "version": filler.astype(np.int64) * -1, **given}
        if not self._fields:
            self._take_memory(tree_map(lambda leaf: leaf[0], given))
        if set(given) != set(self._fields):
            raise ShapeError(f"the episode has the fields {sorted(given)}, the block {sorted(self._fields)}")
        for name, value in given.items():
            _write(self._fields[name], slice(start, start + count), self._columns[env_id], value)
        self._rows[env_id] = self._closed[env_id] = start + count

    def sample(self) -> TensorDict:
        """Give all steps, as views: they are overwritten after ``clear``.

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
        if self._rows != self._closed:
            raise ProtocolError("the last step has no outcome yet: call truncate_episodes with the latest env results")
        if len(set(self._rows)) > 1:
            raise NotEnoughData(f"env workers are at different steps {self._rows}: collect until all are equal")
        length = self._rows[0]
        tensors = tree_map(lambda leaf: torch.from_numpy(leaf[:length]), self._fields)
        return TensorDict(tensors, batch_size=[length, self._width])

    def clear(self) -> None:
        """Forget all steps; the memory stays."""
        self._rows = [0] * len(self._rows)
        self._closed = [0] * len(self._rows)

    def size(self) -> int:
        """Count the valid transitions that are whole."""
        return sum(
            int(self._fields["valid"][:closed, columns].sum())
            for closed, columns in zip(self._closed, self._columns, strict=True)
            if closed
        )

    def versions(self) -> tuple[int, int]:
        """Give the oldest and the newest version of weights that acted in the block."""
        held = [
            self._fields["version"][:rows, columns]
            for rows, columns in zip(self._rows, self._columns, strict=True)
            if rows
        ]
        if not held:
            raise NotEnoughData("the block is empty")
        return min(int(rows.min()) for rows in held), max(int(rows.max()) for rows in held)

    def _close(self, env_id: int, env_ret: EnvRet) -> None:
        row, columns, fields = self._closed[env_id], self._columns[env_id], self._fields
        fields["reward"][row, columns] = env_ret.reward
        fields["terminated"][row, columns] = env_ret.terminated
        fields["truncated"][row, columns] = env_ret.truncated
        np.logical_not(env_ret.is_reset, out=fields["valid"][row, columns])
        _write(fields["next_observation"], row, columns, env_ret.observation)
        if env_ret.final_observation is not None:
            ended = np.flatnonzero(env_ret.ended)
            tree_map(
                lambda dest, final: dest[row, columns].__setitem__(ended, final[ended]),
                fields["next_observation"],
                env_ret.final_observation,
            )
        self._closed[env_id] = row + 1

    def _allocate(self, env_ret: EnvRet, response: PolicyResponse) -> None:
        clash = [name for name in response.extras if name in RESERVED]
        if clash:
            raise ShapeError(f"the extras {clash} have names of the block's own fields; choose others")
        self._names = tuple(response.extras)
        self._take_memory(
            {
                "observation": env_ret.observation,
                "next_observation": env_ret.observation,
                "action": response.action,
                "reward": np.zeros(1, np.float32),
                "terminated": np.zeros(1, np.bool_),
                "truncated": np.zeros(1, np.bool_),
                "valid": np.zeros(1, np.bool_),
                "version": np.zeros(1, np.int64),
                **response.extras,
            }
        )

    def _take_memory(self, row: dict[str, Tree]) -> None:
        """Make arrays for rows that look like ``row``, whose leaves are [N', ...]."""
        shape = (self.capacity, self._width)
        self._fields = tree_map(lambda leaf: np.zeros(shape + leaf.shape[1:], leaf.dtype), row)
        self._names = tuple(name for name in row if name not in RESERVED)


def _write(dest: Tree, row: Any, columns: slice, value: Tree) -> None:
    if isinstance(dest, np.ndarray):
        if dest.shape[2:] != value.shape[1 if isinstance(row, int) else 2 :]:
            raise ValueError(f"got {value.shape}, expected [..., *{dest.shape[2:]}]")
        dest[row, columns] = value
    else:
        tree_map(lambda d, v: _write(d, row, columns, v), dest, value)
