"""The part of a data buffer that lives in one worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlightning.buffer.assignment import blocks
from rlightning.observability.timer import Span, Timer
from rlightning.types import EnvRet, PolicyResponse
from rlightning.types.fragment import Fragment
from rlightning.types.tensordict import TensorDict
from rlightning.types.tensors import owned_tensor
from rlightning.types.tree import tree_map


class BufferShard:
    """Owns one storage; runs in a worker process or locally."""

    def __init__(
        self, storage_class: type[Any], capacity: int, num_envs: Sequence[int], env_ids: Sequence[int] | None = None
    ) -> None:
        """Make an empty shard.

        Args:
            storage_class: Such as ``RolloutBlock``.
            capacity: Steps per sub-env.
            num_envs: Sub-envs of each of its env workers.
            env_ids: Those env workers, in the order of their rows; None means 0, 1, and so on.
        """
        self._storage = storage_class(capacity, num_envs)
        owned = range(len(num_envs)) if env_ids is None else env_ids
        self._storage.env_ids = list(owned)
        self._places = {env_id: place for place, env_id in enumerate(owned)}
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
        for place, env_id in enumerate(env_ids):
            env_ret: EnvRet = env_rets_and_responses[place]
            response: PolicyResponse = env_rets_and_responses[count + place]
            self._storage.add(self._places[env_id], env_ret, response)

    def truncate(self, env_ids: Sequence[int], *env_rets: EnvRet) -> None:
        """Close the open steps of some env workers by their latest results."""
        for env_id, env_ret in zip(env_ids, env_rets, strict=True):
            self._storage.truncate(self._places[env_id], env_ret)

    def cut(self, env_ids: Sequence[int]) -> None:
        """Drop the open steps of some env workers, whose outcomes are lost."""
        for env_id in env_ids:
            self._storage.cut(self._places[env_id])

    def rows(self) -> dict[int, int]:
        """Count the steps of each env worker, an open one among them."""
        return dict(zip(self._places, self._storage.rows(), strict=True))

    def add_episode(self, env_id: int, episode: TensorDict) -> None:
        """Add consecutive whole transitions of one env worker."""
        self._storage.add_episode(self._places[env_id], episode)

    def add_fragment(self, env_ids: Sequence[int], fragment: Fragment) -> None:
        """Add what those of a fragment's env workers collected that are this shard's."""
        with self._timer.measure("store"):
            self._add_fragment(env_ids, fragment)

    def _add_fragment(self, env_ids: Sequence[int], fragment: Fragment) -> None:
        length = len(fragment.fields["reward"])
        stop = 0
        for env_id, count in zip(fragment.env_ids, fragment.num_envs, strict=True):
            start, stop = stop, stop + count
            if env_id in env_ids:
                # Owned, since what comes out of an object store may not be written, of which torch would warn.
                rows = tree_map(lambda leaf, at=slice(start, stop): owned_tensor(leaf[:, at]), fragment.fields)
                self.add_episode(env_id, TensorDict(rows, batch_size=[length, count]))

    def sample(self) -> TensorDict:
        """Give the data, ``[T, N]``."""
        with self._timer.measure("sample"):
            data: TensorDict = self._storage.sample()
        return data

    def sample_pieces(self, count: int) -> list[TensorDict]:
        """Give the data in pieces of whole sub-envs, ``[T, N']`` each; some have none where there are too few."""
        data = self.sample()
        return [data[:, block.start : block.stop] for block in blocks(data.batch_size[1], count)]

    def clear(self) -> None:
        """Forget all data."""
        self._storage.clear()

    def size(self) -> int:
        """Count the valid transitions."""
        return int(self._storage.size())

    def versions(self) -> tuple[int, int]:
        """Give the oldest and the newest version of weights that acted in the data."""
        oldest, newest = self._storage.versions()
        return int(oldest), int(newest)

    def record_spans(self) -> None:
        """Write down, from now on, when data are stored and sampled."""
        self._is_traced = True
        self._timer.record_spans()

    def take_spans(self) -> list[Span]:
        """Give what was written down since the last call."""
        return self._timer.take_spans()
