"""The data buffer as engines see it: it takes what envs and policies produced and hands it to the learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDict

from rlightning.buffer.shard import BufferShard
from rlightning.runtime import Future, as_handle
from rlightning.types import BatchedData, EnvRet, PolicyResponse


class DataBuffer:
    """Passes data to shards, which may live elsewhere; results and responses may be futures and stay unopened.

    A step is added as what was *seen* and what was *done*; its outcome comes with the next step of the same env
    worker, or with ``truncate_episodes`` after the last one.
    """

    def __init__(
        self, shards: Sequence[Any], *, call_timeout_s: float | None = None, on_close: Callable[[], None] | None = None
    ) -> None:
        """Take the shards.

        Args:
            shards: ``BufferShard`` objects or Ray actor handles of them; one in this version.
            call_timeout_s: Seconds that one call on a shard may take; None is no limit.
            on_close: Called once by ``close``, to end the processes of the shards.
        """
        if len(shards) != 1:
            raise ValueError(f"this version has one shard, got {len(shards)}")
        self._shard = as_handle(shards[0], "buffer[0]")
        self._timeout_s = call_timeout_s
        self._on_close = on_close

    def add_data_async(
        self, env_id: int, env_ret: EnvRet | Future[EnvRet], response: PolicyResponse | Future[PolicyResponse]
    ) -> Future[None]:
        """Add one step of one env worker without waiting; the future tells of a failure."""
        return self._shard.call(BufferShard.add, (env_id,), env_ret, response)

    def add_batched_data_async(self, env_rets: BatchedData[Any], responses: BatchedData[Any]) -> Future[None]:
        """Add one step of several env workers by one call, without waiting; the future tells of a failure.

        Raises:
            ValueError: If the two batches are not of the same env workers in the same order.
        """
        if tuple(env_rets.env_ids) != tuple(responses.env_ids):
            raise ValueError(f"results of env workers {env_rets.env_ids}, responses for {responses.env_ids}")
        return self._shard.call(BufferShard.add, tuple(env_rets.env_ids), *env_rets.items, *responses.items)

    def add_transition(
        self, env_id: int, env_ret: EnvRet | Future[EnvRet], response: PolicyResponse | Future[PolicyResponse]
    ) -> None:
        """Add one step of one env worker and wait until it is stored."""
        self.add_data_async(env_id, env_ret, response).result(self._timeout_s)

    def add_batched_transition(self, env_rets: BatchedData[Any], responses: BatchedData[Any]) -> None:
        """Add one step of several env workers and wait until it is stored."""
        self.add_batched_data_async(env_rets, responses).result(self._timeout_s)

    def add_episode(self, env_id: int, episode: TensorDict) -> None:
        """Add consecutive whole transitions of one env worker, [T', N_worker]; fields as in ``sample``."""
        self._shard.call(BufferShard.add_episode, env_id, episode).result(self._timeout_s)

    def truncate_episodes(self, env_rets: BatchedData[Any]) -> None:
        """Close the last step of each env worker by its latest result, so that the data can be sampled.

        The episodes go on afterwards: the next step that is added starts a new row. What the learner needs to
        bootstrap the open end, the true next observation, is in the row.
        """
        call = self._shard.call(BufferShard.truncate, tuple(env_rets.env_ids), *env_rets.items)
        call.result(self._timeout_s)

    def sample(self) -> list[Future[TensorDict]]:
        """Give the data, one piece for each train policy; pass the pieces on unopened."""
        return [self._shard.call(BufferShard.sample)]

    def clear(self) -> None:
        """Forget all data."""
        self._shard.call(BufferShard.clear).result(self._timeout_s)

    def versions(self) -> tuple[int, int]:
        """Give the oldest and the newest version of weights that acted in the data."""
        return self._shard.call(BufferShard.versions).result(self._timeout_s)

    def size(self) -> int:
        """Count the valid transitions that are whole."""
        return self._shard.call(BufferShard.size).result(self._timeout_s)

    def __len__(self) -> int:
        return self.size()

    def close(self) -> None:
        """End what was started for the shards; may be called twice."""
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()
