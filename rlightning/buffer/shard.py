"""The part of a data buffer that lives in one worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlightning.buffer.assignment import blocks
from rlightning.observability.timer import Span, Timer
from rlightning.types import EnvRet, PolicyResponse
from rlightning.types.fragment import Fragment
from rlightning.types.tensordict import TensorDict


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was held of a fragment that is not whole.

    Attributes:
        rows: Its rows, an open one among them.
        transitions: Its valid whole transitions.
    """

    rows: int = 0
    transitions: int = 0


class BufferShard:
    """Owns one storage, and assembles in it the fragments of its env workers from single steps."""

    def __init__(
        self, storage_class: type[Any], capacity: int, num_envs: Sequence[int], env_ids: Sequence[int] | None = None
    ) -> None:
        """Make an empty shard.

        Args:
            storage_class: Such as ``RolloutBlock``.
            capacity: Steps per sub-env.
            num_envs: Sub-envs of each of its env workers.
            env_ids: Those env workers, in the order of their columns; None means 0, 1, and so on.
        """
        self._storage = storage_class(capacity, num_envs)
        owned = range(len(num_envs)) if env_ids is None else env_ids
        self._storage.env_ids = list(owned)
        self._indices = {env_id: index for index, env_id in enumerate(owned)}
        self._timer = Timer()
        self._is_traced = False

    def add(self, env_ids: Sequence[int], *env_rets_and_responses: Any) -> None:
        """Add one step of some env workers.

        Args:
            env_ids: The env workers.
            *env_rets_and_responses: First what each saw, then what was done there, both in the order of the ids.
        """
        if self._is_traced:  # else not worth what it costs in every step
            with self._timer.measure("store"):
                self._add(env_ids, env_rets_and_responses)
        else:
            self._add(env_ids, env_rets_and_responses)

    def _add(self, env_ids: Sequence[int], env_rets_and_responses: Sequence[Any]) -> None:
        count = len(env_ids)
        for number, env_id in enumerate(env_ids):
            env_ret: EnvRet = env_rets_and_responses[number]
            response: PolicyResponse = env_rets_and_responses[count + number]
            self._storage.add(self._indices[env_id], env_ret, response)

    def truncate(self, env_id: int, env_ret: EnvRet, steps: int | None = None) -> bool:
        """Close the open step of an env worker by its latest result, so that its fragment is whole.

        Args:
            env_id: The env worker.
            env_ret: Its latest result.
            steps: How many steps the fragment must have; None takes any number.

        Returns:
            Whether it is whole; with another number of steps, of which some were lost on the way, nothing is closed.
        """
        index = self._indices[env_id]
        if steps is not None and self._storage.rows(index) != steps:
            return False
        self._storage.truncate(index, env_ret)
        return True

    def drop(self, env_ids: Sequence[int]) -> dict[int, Dropped]:
        """Forget what is held of the fragments of some env workers that are not whole."""
        return {env_id: Dropped(*self._storage.drop(self._indices[env_id])) for env_id in env_ids}

    def take(self, env_id: int) -> Fragment:
        """Remove the fragment of an env worker, which must be whole, and return it."""
        with self._timer.measure("sample"):
            return Fragment(env_id, self._storage.take(self._indices[env_id]))

    def add_fragment(self, fragment: Fragment) -> None:
        """Add whole transitions of one env worker."""
        with self._timer.measure("store"):
            self._storage.add_fragment(self._indices[fragment.env_id], fragment.fields)

    def sample(self) -> TensorDict:
        """Return the data, ``[T, N]``."""
        with self._timer.measure("sample"):
            data: TensorDict = self._storage.sample()
        return data

    def sample_pieces(self, count: int) -> list[TensorDict]:
        """Return the data in pieces of whole sub-envs, ``[T, N']`` each; some have none where there are too few."""
        data = self.sample()
        return [data[:, block.start : block.stop] for block in blocks(data.batch_size[1], count)]

    def clear(self) -> None:
        """Forget all data."""
        self._storage.clear()

    def size(self) -> int:
        """Count the valid transitions."""
        return int(self._storage.size())

    def versions(self) -> tuple[int, int]:
        """Return the oldest and the newest version of weights that acted in the data."""
        oldest, newest = self._storage.versions()
        return int(oldest), int(newest)

    def record_spans(self) -> None:
        """Write down, from now on, when data are stored and sampled."""
        self._is_traced = True
        self._timer.record_spans()

    def take_spans(self) -> list[Span]:
        """Return what was written down since the last call."""
        return self._timer.take_spans()
