"""All env workers of a run, seen from the controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlightning.env.env_worker import EnvWorker, Episode
from rlightning.errors import CheckpointError, ConfigError, Problem
from rlightning.observability.timer import Span
from rlightning.runtime import Future, WorkerInfo, as_handle, gather
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse


class EnvGroup:
    """Calls env workers; whether they are objects here or actors elsewhere is the handles' business.

    Args:
        workers: ``EnvWorker`` objects, Ray actor handles or guests of it; their order is that of the env ids.
        call_timeout_s: Seconds that a call may take; None waits for ever.
        on_close: Called once by ``close``, to end what was started for the workers.

    Attributes:
        env_ids: Ids of the workers: 0, 1, ...
        env_metas: Description of each worker's env.
        env_meta: What all workers have in common; its ``num_envs`` counts the sub-envs of all of them.

    Raises:
        ConfigError: If there is no worker, or two workers differ in their spaces, so that no policy could serve both.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        call_timeout_s: float | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._handles = [as_handle(worker, f"env[{i}]") for i, worker in enumerate(workers)]
        self._timeout_s = call_timeout_s
        self._on_close = on_close
        self._is_closed = False
        self.env_ids: tuple[int, ...] = tuple(range(len(self._handles)))
        self.env_metas: list[EnvMeta] = self._call_all(EnvWorker.get_meta)
        self.env_meta = _common_meta(self.env_metas)

    @property
    def workers(self) -> list[Any]:
        """The workers, as they were given."""
        return [handle.target for handle in self._handles]

    @property
    def num_envs(self) -> int:
        """All sub-envs of all workers."""
        return self.env_meta.num_envs

    @property
    def sub_envs(self) -> list[tuple[int, int]]:
        """Worker and row of each sub-env, in the order of the workers."""
        return [(env_id, row) for env_id, meta in enumerate(self.env_metas) for row in range(meta.num_envs)]

    def infos(self) -> list[WorkerInfo]:
        """Tell where each worker lives."""
        return [handle.info() for handle in self._handles]

    def __len__(self) -> int:
        return len(self._handles)

    def reset(self, reseed: bool = False) -> BatchedData[Future[EnvRet]]:
        """Start new episodes everywhere.

        Args:
            reseed: Play the episodes of the first reset again.
        """
        return BatchedData(self.env_ids, [handle.call(EnvWorker.reset, reseed) for handle in self._handles])

    def step(self, responses: BatchedData[PolicyResponse | Future[PolicyResponse]]) -> BatchedData[Future[EnvRet]]:
        """Step the workers that ``responses`` names, with a response or the future of one each."""
        handles = self._handles
        futures = [handles[env_id].call(EnvWorker.step, response) for env_id, response in responses]
        return BatchedData(responses.env_ids, futures)

    def pop_episodes(self) -> list[Episode]:
        """Give the episodes that ended since the last call, worker by worker."""
        return [episode for episodes in self._call_all(EnvWorker.pop_episodes) for episode in episodes]

    def record_spans(self) -> None:
        """Have all workers write down, from now on, when they do what."""
        self._call_all(EnvWorker.record_spans)

    def take_spans(self) -> dict[str, list[Span]]:
        """Give what the workers wrote down since the last call, by their names."""
        spans = self._call_all(EnvWorker.take_spans)
        return {handle.name: taken for handle, taken in zip(self._handles, spans, strict=True)}

    def get_state(self) -> list[dict[str, Any] | None]:
        """Describe every worker; None for one whose env cannot be stored."""
        return self._call_all(EnvWorker.get_state)

    def set_state(self, states: Sequence[dict[str, Any] | None], generation: int = 1) -> BatchedData[Future[EnvRet]]:
        """Go on from states of ``get_state``.

        Args:
            states: One per worker; where it is None, the worker starts new episodes.
            generation: Which episodes those are; 0 are the first ones of a run.

        Returns:
            What each worker last returned, to act on next.

        Raises:
            CheckpointError: If there are more or fewer states than workers.
        """
        if len(states) != len(self):
            raise CheckpointError(
                f"{len(states)} env states for {len(self)} env workers: the run had other env workers"
            )
        futures: list[Future[EnvRet]] = [
            handle.call(EnvWorker.restart, generation) if state is None else handle.call(EnvWorker.set_state, state)
            for handle, state in zip(self._handles, states, strict=True)
        ]
        return BatchedData(self.env_ids, futures)

    def render(self, env_id: int = 0) -> Any:
        """Draw the first row of a worker: [H, W, 3] uint8; None where its env cannot be drawn."""
        return self._handles[env_id].call(EnvWorker.render).result(self._timeout_s)

    def close(self) -> None:
        """Close the envs and end what was started for them; may be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._call_all(EnvWorker.close)
        finally:
            if self._on_close is not None:
                self._on_close()

    def _call_all(self, method: Any) -> list[Any]:
        return gather([handle.call(method) for handle in self._handles], self._timeout_s)


def _common_meta(metas: Sequence[EnvMeta]) -> EnvMeta:
    if not metas:
        raise ConfigError(Problem("env", "there are no env workers"))
    first = metas[0]
    for i, meta in enumerate(metas):
        for kind in ("observation_space", "action_space"):
            if getattr(meta, kind) != getattr(first, kind):
                raise ConfigError(
                    Problem(
                        f"env.{i}.name",
                        f"{meta.name} has another {kind.replace('_', ' ')} than {first.name}, and one policy serves "
                        f"both: {getattr(meta, kind)} and {getattr(first, kind)}",
                    )
                )
    name = ", ".join(dict.fromkeys(meta.name for meta in metas))
    limits = {meta.max_episode_steps for meta in metas}
    limit = max((limit for limit in limits if limit is not None), default=None) if None not in limits else None
    num_envs = sum(meta.num_envs for meta in metas)
    return EnvMeta(name, first.observation_space, first.action_space, num_envs, limit)
