"""All env workers of a run, seen from the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlightning.env.env_worker import EnvWorker
from rlightning.env.episodes import Episode
from rlightning.env.faults import FaultCounts, FaultKind, RestartRules
from rlightning.env.replacement import Replacement
from rlightning.errors import CheckpointError, ConfigError, Problem, WorkerDied, WorkerError
from rlightning.observability.timer import Span
from rlightning.runtime import Future, WorkerInfo, as_handle, gather
from rlightning.types import BatchedData, EnvMeta, EnvRet, PolicyResponse

_CLOSE_S = 30.0
"""Seconds that envs get to close. One that hangs is ended by its process, and the others do not wait longer for it."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How a group goes on after a fault.

    Attributes:
        replaced: Env id of each new worker -> what it shows first.
        faults: Env id of each new worker -> what was wrong with the one before.
        steps: Env id of each worker that was well -> steps that it has made in all.
    """

    replaced: dict[int, Future[EnvRet]]
    faults: dict[int, FaultKind]
    steps: dict[int, int]


class EnvGroup:
    """Calls env workers; whether they are objects here or actors elsewhere is the handles' business.

    Args:
        workers: ``EnvWorker`` objects, Ray actor handles or in-process workers; their order is that of the env ids.
        call_timeout_s: Seconds that a call may take; None waits for ever.
        on_close: Called once by ``close``, to end what was started for the workers.
        restarts: How workers are replaced; None means never.

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
        restarts: RestartRules | None = None,
    ) -> None:
        rules = RestartRules.never(len(workers)) if restarts is None else restarts
        names = rules.names or [f"env[{index}]" for index in range(len(workers))]
        self._handles = [as_handle(worker, name) for worker, name in zip(workers, names, strict=True)]
        self._replacement = Replacement(self._handles, call_timeout_s, rules)
        self._guard = self._replacement.guard
        self._records = False
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
        """Return where each worker lives."""
        return [handle.info() for handle in self._handles]

    def __len__(self) -> int:
        return len(self._handles)

    def reset(self, reseed: bool = False) -> BatchedData[Future[EnvRet]]:
        """Start new episodes everywhere.

        Args:
            reseed: Play the episodes of the first reset again.
        """
        return BatchedData(self.env_ids, [self._reset(env_id, reseed) for env_id in self.env_ids])

    def step(self, responses: BatchedData[PolicyResponse | Future[PolicyResponse]]) -> BatchedData[Future[EnvRet]]:
        """Step the workers that ``responses`` names, with a response or the future of one each."""
        handles = self._handles
        futures = [handles[env_id].call(EnvWorker.step, response) for env_id, response in responses]
        if self._guard.is_on:
            for env_id, future, response in zip(responses.env_ids, futures, responses.items, strict=True):
                self._guard.started(env_id, future, response)
        return BatchedData(responses.env_ids, futures)

    def current(self, env_ids: Sequence[int]) -> BatchedData[Future[EnvRet]]:
        """Return what some workers returned last once more, to go on from."""
        return BatchedData(env_ids, [self._handles[env_id].call(EnvWorker.current) for env_id in env_ids])

    # Faults

    @property
    def faults(self) -> FaultCounts:
        """What happened to the workers so far; a resumed run goes on from those of its checkpoint."""
        return self._replacement.counts

    @faults.setter
    def faults(self, counts: FaultCounts) -> None:
        self._replacement.counts = counts

    def raise_others(self, futures: Iterable[Future[Any]]) -> None:
        """Raise the first failure of futures that are done that is none of a worker here."""
        for future in futures:
            try:
                future.result()
            except WorkerError as error:
                if not self._replacement.is_ours(error):
                    raise

    def recover(self, error: WorkerError, in_step: Mapping[int, int | None] | None = None) -> Recovery:
        """Replace the workers whose envs are at fault, where they were; the new ones play episodes of their own.

        Args:
            error: The failure that was met.
            in_step: Env id -> the step in which a worker is, where that is known, for messages; 0 is the reset.

        Raises:
            WorkerError: ``error`` itself if the fault is not one of an env of this group; the fault of a worker that
                was replaced as often as it may be.
            ConfigError: If an env that was built anew has other spaces.
        """
        if not self._replacement.is_ours(error):
            raise error
        recovery = Recovery({}, {}, {})
        for env_id, report in enumerate(self._replacement.reports()):
            if report.fault is None:
                recovery.steps[env_id] = report.steps
                continue
            self._replacement.replace(env_id, report, self.env_metas[env_id].name, (in_step or {}).get(env_id))
            recovery.faults[env_id] = report.fault
            recovery.replaced[env_id] = self._begin_anew(env_id)
        if not recovery.replaced:
            raise error
        return recovery

    def _begin_anew(self, env_id: int) -> Future[EnvRet]:
        """Repeat at a new worker what the one before it was asked for."""
        meta, before = self._handles[env_id].call(EnvWorker.get_meta).result(self._timeout_s), self.env_metas[env_id]
        if (meta.observation_space, meta.action_space) != (before.observation_space, before.action_space):
            raise ConfigError(
                Problem(
                    "env.name", f"{meta.name} was built anew and has other spaces than before: {meta}, not {before}"
                )
            )
        if self._records:
            self._handles[env_id].call(EnvWorker.record_spans)
        return self._reset(env_id)

    def _reset(self, env_id: int, reseed: bool = False) -> Future[EnvRet]:
        future = self._handles[env_id].call(EnvWorker.reset, reseed)
        self._guard.started(env_id, future)
        return future

    # What the workers know

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, worker by worker."""
        return [episode for episodes in self._call_living(EnvWorker.pop_episodes, ()) for episode in episodes]

    def cut_episodes(self, length: int) -> list[tuple[int, int]]:
        """Count the open episodes of at least ``length`` steps as truncated; the envs themselves go on.

        Returns:
            Index of the env worker and row of each.
        """
        cut = self._call_living(EnvWorker.cut_episodes, (), None, length)
        return [(worker, row) for worker, rows in enumerate(cut) for row in rows]

    def pop_info_means(self) -> dict[str, float]:
        """Return the means, over the steps since the last call, of the numbers of ``info`` that are logged."""
        sums: dict[str, float] = {}
        steps: dict[str, int] = {}
        for part, count in self._call_living(EnvWorker.pop_info, ({}, 0)):
            for name, value in part.items():
                sums[name] = sums.get(name, 0.0) + value
                steps[name] = steps.get(name, 0) + count
        return {name: sums[name] / steps[name] for name in sums}

    def record_spans(self) -> None:
        """Record at all workers, from now on, when they do what."""
        self._records = True
        self._call_living(EnvWorker.record_spans)

    def take_spans(self) -> dict[str, list[Span]]:
        """Return what the workers recorded since the last call, by their names."""
        spans = self._call_living(EnvWorker.take_spans, [])
        return {handle.name: taken for handle, taken in zip(self._handles, spans, strict=True)}

    def get_state(self) -> list[dict[str, Any] | None]:
        """Describe every worker; None for one whose env cannot be stored, or that is gone."""
        return self._call_living(EnvWorker.get_state)

    def set_state(self, states: Sequence[dict[str, Any] | None], generation: int = 1) -> BatchedData[Future[EnvRet]]:
        """Go on from states of ``get_state``.

        Args:
            states: One per worker; where it is None, the worker starts new episodes.
            generation: Which episodes those are at least; 0 are the first ones of a run.

        Returns:
            What each worker last returned, to act on next.

        Raises:
            CheckpointError: If there are more or fewer states than workers.
        """
        if len(states) != len(self):
            raise CheckpointError(
                f"{len(states)} env states for {len(self)} env workers: the run had other env workers"
            )
        futures: list[Future[EnvRet]] = []
        played = self.faults.generations
        for env_id, (handle, state) in enumerate(zip(self._handles, states, strict=True)):
            if state is None:
                # A worker that was replaced has played the next generation, which may have come to that number.
                played[env_id] = max(generation, played[env_id] + 1) if played[env_id] else generation
                futures.append(handle.call(EnvWorker.restart, played[env_id]))
            else:
                futures.append(handle.call(EnvWorker.set_state, state))
        return BatchedData(self.env_ids, futures)

    def render(self, env_id: int = 0) -> Any:
        """Draw the first row of a worker: [H, W, 3] uint8; None where its env cannot be drawn."""
        return self._handles[env_id].call(EnvWorker.render).result(self._timeout_s)

    def close(self) -> None:
        """Close the envs and end what was started for them; may be called twice.

        Raises:
            WorkerError: If an env failed to close.
            CallTimeout: If a remote one took longer than half a minute; what was started is ended nevertheless.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            limit = _CLOSE_S if self._timeout_s is None else min(_CLOSE_S, self._timeout_s)
            self._call_living(EnvWorker.close, timeout_s=limit)
        finally:
            self._guard.close()
            if self._on_close is not None:
                self._on_close()

    def _call_all(self, method: Any) -> list[Any]:
        return gather([handle.call(method) for handle in self._handles], self._timeout_s)

    def _call_living(
        self, method: Any, instead: Any = None, timeout_s: float | None = None, *arguments: Any
    ) -> list[Any]:
        """Call all workers; one that is gone and may be replaced is missed by the next step, and not here."""
        futures = [handle.call(method, *arguments) for handle in self._handles]
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            return gather(futures, limit_s)
        except WorkerDied:
            if not self._replacement.is_possible:
                raise
        answers = []
        for handle, future in zip(self._handles, futures, strict=True):
            try:
                answers.append(future.result(limit_s))
            except WorkerDied as died:
                if died.worker != handle.name:
                    raise
                answers.append(instead)
        return answers


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
    return replace(first, name=name, num_envs=num_envs, max_episode_steps=limit)
