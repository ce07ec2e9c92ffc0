"""The data buffer as engines see it: it takes what envs and policies produced and hands it to the learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlightning.buffer.assignment import BufferRoutes, routes_in_order
from rlightning.buffer.storage import Dropped, RolloutBlock
from rlightning.observability.timer import Span
from rlightning.runtime import Future, JointFuture, LocalFuture, WorkerHandle, as_handle, gather
from rlightning.types import BatchedData, EnvRet, PolicyResponse
from rlightning.types.fragment import Fragment
from rlightning.types.tensordict import TensorDict
from rlightning.types.tree import to_numpy


class DataBuffer:
    """Passes data to shards, which may live elsewhere; results and responses may be futures and stay unopened.

    A step is added as what was *seen* and what was *done*; its outcome comes with the next step of the same env
    worker, or with ``truncate_episodes`` after the last one.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        *,
        num_env_workers: int | None = None,
        num_learners: int | None = None,
        routes: BufferRoutes | None = None,
        call_timeout_s: float | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        """Connect the shards.

        Args:
            shards: ``RolloutBlock`` objects or Ray actor handles of them, in the order of their env workers.
            num_env_workers: Env workers of all shards.
            num_learners: Train policies; None means one per shard.
            routes: Which env workers a shard has, and to which train policies it gives; None means blocks of
                neighbours.
            call_timeout_s: Seconds that one call on a shard may take; None is no limit.
            on_close: Called once by ``close``, to end the processes of the shards.

        Raises:
            ValueError: If there is no shard, or a shard would have no env worker or no train policy.
        """
        learners = len(shards) if num_learners is None else num_learners
        if not shards:
            raise ValueError("a data buffer needs a shard")
        if len(shards) > 1 and (num_env_workers is None or num_env_workers < len(shards)):
            raise ValueError(f"{len(shards)} shards for {num_env_workers} env workers: each needs one")
        if learners < len(shards):
            raise ValueError(f"{len(shards)} shards for {learners} train policies: each needs one to give its data to")
        self._shards = [as_handle(shard, f"buffer[{index}]") for index, shard in enumerate(shards)]
        if routes is None:
            routes = routes_in_order(num_env_workers or 0, len(shards), learners)
        self._owners = [self._shards[shard] for shard in routes.env_shards] if len(shards) > 1 else []
        self._learner_shards = routes.learner_shards
        self._timeout_s = call_timeout_s
        self._on_close = on_close

    def add_data_async(
        self, env_id: int, env_ret: EnvRet | Future[EnvRet], response: PolicyResponse | Future[PolicyResponse]
    ) -> Future[None]:
        """Add one step of one env worker without waiting; the future raises a failure."""
        return self._owner(env_id).call(RolloutBlock.add, env_id, env_ret, response)

    def add_batched_data_async(self, env_rets: BatchedData[Any], responses: BatchedData[Any]) -> Future[None]:
        """Add one step of several env workers by one call, without waiting; the future raises a failure.

        Raises:
            ValueError: If the two batches are not of the same env workers in the same order.
        """
        if tuple(env_rets.env_ids) != tuple(responses.env_ids):
            raise ValueError(f"results of env workers {env_rets.env_ids}, responses for {responses.env_ids}")
        return self.adder(env_rets.env_ids)(*env_rets.items, *responses.items)

    def adder(self, env_ids: Sequence[int]) -> Callable[..., Future[None]]:
        """Return a function that adds one step of some env workers: of what each saw, then of what was done there."""
        if len(self._shards) == 1:
            return partial(self._shards[0].call, RolloutBlock.add_all, tuple(env_ids))
        owned = [
            (
                shard,
                tuple(env_ids[index] for index in indices),
                [*indices, *(len(env_ids) + index for index in indices)],
            )
            for shard, indices in self._by_owner(env_ids)
        ]

        def add(*items: Any) -> Future[None]:
            return JointFuture(
                [
                    shard.call(RolloutBlock.add_all, ids, *(items[index] for index in indices))
                    for shard, ids, indices in owned
                ]
            )

        return add

    def add_fragment_async(self, env_id: int, fragment: Fragment | Future[Fragment]) -> Future[None]:
        """Add what an env worker collected in one go, without waiting; a future of it goes to its shard unopened."""
        return self._owner(env_id).call(RolloutBlock.add_fragment, fragment)

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
        self.add_fragment_async(env_id, Fragment(env_id, to_numpy(episode.to_dict()))).result(self._timeout_s)

    def truncate_episodes(self, env_rets: BatchedData[Any]) -> None:
        """Close the last step of each env worker by its latest result, so that the data can be sampled.

        The episodes go on afterwards: the next step that is added starts a new row. What the learner needs to
        bootstrap the open end, the true next observation, is in the row.
        """
        gather([self.truncate_async(env_id, env_ret) for env_id, env_ret in env_rets], self._timeout_s)

    def truncate_async(self, env_id: int, env_ret: EnvRet | Future[EnvRet], steps: int | None = None) -> Future[bool]:
        """Make the fragment of an env worker whole by its latest result, without waiting.

        Args:
            env_id: The env worker.
            env_ret: Its latest result.
            steps: How many steps the fragment must have; None takes any number.

        Returns:
            Whether it is whole: False where it has another number of steps, and then nothing is closed.
        """
        return self._owner(env_id).call(RolloutBlock.truncate, env_id, env_ret, steps)

    def take_async(self, env_id: int) -> Future[Fragment]:
        """Remove the fragment of an env worker, which must be whole; its future goes on unopened."""
        return self._owner(env_id).call(RolloutBlock.take, env_id)

    def drop(self, env_ids: Sequence[int]) -> dict[int, Dropped]:
        """Forget what is held of the fragments of some env workers that are not whole."""
        calls = [
            shard.call(RolloutBlock.drop, [env_ids[index] for index in indices])
            for shard, indices in self._by_owner(env_ids)
        ]
        return {env_id: lost for held in gather(calls, self._timeout_s) for env_id, lost in held.items()}

    def sample(self, num_learners: int | None = None) -> list[Future[TensorDict]]:
        """Return the data, one piece for each train policy; pass the pieces on unopened.

        Args:
            num_learners: Train policies there are now; None means as many as at the start.

        Raises:
            ValueError: If there are fewer of them than shards.
        """
        owners = self._learner_shards
        if num_learners is not None and num_learners != len(owners):
            if num_learners < len(self._shards):
                raise ValueError(
                    f"{len(self._shards)} shards for {num_learners} train policies: each needs one for its data"
                )
            owners = routes_in_order(0, len(self._shards), num_learners).learner_shards
        held = [self._sample(shard, owners.count(index)) for index, shard in enumerate(self._shards)]
        pieces = [iter(of_shard) for of_shard in held]
        return [next(pieces[shard]) for shard in owners]

    def _sample(self, shard: WorkerHandle, count: int) -> list[Future[TensorDict]]:
        """Ask a shard for its data in pieces."""
        if count == 1:
            return [shard.call(RolloutBlock.sample)]
        return shard.call_split(count, RolloutBlock.sample_pieces, count)

    def clear(self) -> None:
        """Forget all data."""
        self._all(RolloutBlock.clear)

    def versions(self) -> tuple[int, int]:
        """Return the oldest and the newest version of weights that acted in the data."""
        oldest, newest = zip(*self._all(RolloutBlock.versions), strict=True)
        return min(oldest), max(newest)

    def size(self) -> int:
        """Count the valid transitions that are whole."""
        return sum(self._all(RolloutBlock.size))

    def __len__(self) -> int:
        return self.size()

    def record_spans(self) -> None:
        """Record at all shards, from now on, when data are stored and sampled."""
        self._all(RolloutBlock.record_spans)

    def take_spans(self) -> dict[str, list[Span]]:
        """Return what the shards recorded since the last call, by their names."""
        spans = self._all(RolloutBlock.take_spans)
        return {shard.name: taken for shard, taken in zip(self._shards, spans, strict=True)}

    def close(self) -> None:
        """End what was started for the shards; may be called twice."""
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

    def _all(self, method: Callable[..., Any]) -> list[Any]:
        return gather([shard.call(method) for shard in self._shards], self._timeout_s)

    def _owner(self, env_id: int) -> WorkerHandle:
        return self._owners[env_id] if self._owners else self._shards[0]

    def _by_owner(self, env_ids: Sequence[int]) -> list[tuple[WorkerHandle, list[int]]]:
        """Return each shard that owns something of a batch, with the indices of that."""
        owned: dict[str, tuple[WorkerHandle, list[int]]] = {}
        for index, env_id in enumerate(env_ids):
            owner = self._owner(env_id)
            owned.setdefault(owner.name, (owner, []))[1].append(index)
        return list(owned.values())


class NullBuffer(DataBuffer):
    """Keeps nothing of what is collected: an evaluation counts episodes."""

    def __init__(self) -> None:
        return None

    def adder(self, env_ids: Sequence[int]) -> Callable[..., Future[None]]:
        return lambda *items: LocalFuture(None)

    def truncate_async(self, env_id: int, env_ret: Any, steps: int | None = None) -> Any:
        return env_ret  # where a step failed, so did all later ones

    def drop(self, env_ids: Sequence[int]) -> dict[int, Dropped]:
        return {}

    def size(self) -> int:
        return 0
