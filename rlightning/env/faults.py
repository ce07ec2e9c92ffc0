"""What can go wrong with an env, which worker gets another try, and which call takes too long."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rlightning.runtime import Future, wait

logger = logging.getLogger(__name__)

FaultKind = Literal["died", "raised", "timed_out", "not_finite"]
"""The process ended; the env raised or gave what it must not give; a call took too long; a number was not finite."""
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_LONGEST_LOOK_S = 1.0
"""Seconds between two looks at calls that may hang."""


@dataclass(frozen=True, slots=True)
class RestartRules:
    """How the workers of a group are replaced.

    Attributes:
        names: Role and index of each worker, by env id.
        max_restarts: How often each may be replaced.
        step_timeout_s: Seconds that a reset or step of each may take; None is no limit.
        build: From env id, the worker that must go, and the generation of its episodes, to the new worker. It ends what
            is left of the old one, which was closed if it still answered.
    """

    names: Sequence[str]
    max_restarts: Sequence[int]
    step_timeout_s: Sequence[float | None]
    build: Callable[[int, Any, int], Any]

    @classmethod
    def never(cls, workers: int) -> RestartRules:
        """Return the rules of a group whose workers are not replaced."""

        def refuse(env_id: int, old: Any, generation: int) -> Any:
            raise NotImplementedError

        return cls((), [0] * workers, [None] * workers, refuse)


@dataclass(slots=True)
class FaultCounts:
    """What happened to the workers of a group so far.

    Attributes:
        restarts: How often each worker was replaced, by env id.
        generations: Which episodes each plays; those of two generations differ.
        kinds: Faults of each kind.
    """

    restarts: list[int]
    generations: list[int]
    kinds: dict[str, int] = field(default_factory=dict)

    @classmethod
    def none(cls, workers: int) -> FaultCounts:
        """Return the counts at the start."""
        return cls([0] * workers, [0] * workers)

    def metrics(self) -> dict[str, float]:
        """Return the counters that are not 0, as metrics."""
        return {f"faults/{kind}": float(count) for kind, count in self.kinds.items()}


class HangGuard:
    """Ends workers whose calls take too long, in a thread of its own, whatever the others wait for meanwhile.

    It sees no more than whether futures are done, so a call counts from the first look that finds it running.

    Args:
        limits_s: Seconds that a call of each worker may take, by env id; None is no limit. Without any there is no
            thread.
        end: Ends the worker of an env id; called in the thread.
        clock: Returns the seconds.
    """

    def __init__(
        self,
        limits_s: Sequence[float | None],
        end: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = [limit for limit in limits_s if limit is not None]
        self.is_on = bool(limits)
        self._limits_s, self._end, self._clock = limits_s, end, clock
        self._look_every_s = min(_LONGEST_LOOK_S, min(limits, default=1.0) / 4)
        # Only unfinished calls are of interest; a result that is not wanted elsewhere is kept until the next look.
        self._calls: dict[int, deque[tuple[Future[Any], Any]]] = {}
        self._since: dict[int, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def started(self, env_id: int, call: Future[Any], argument: Any = None) -> None:
        """Note a call, which cannot run before its argument is there."""
        if self._limits_s[env_id] is None:
            return
        with self._lock:
            self._calls.setdefault(env_id, deque()).append((call, argument))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hang guard", daemon=True)
            self._thread.start()

    def forget(self, env_id: int) -> None:
        """Note that a worker is another one."""
        with self._lock:
            self._calls.pop(env_id, None)
            self._since.pop(env_id, None)

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._look_every_s):
            try:
                self.look()
            except Exception:
                logger.exception("envs that hang are not noticed any more")
                return

    def look(self) -> None:
        """End the workers whose current calls take too long."""
        with self._lock:
            now = self._clock()
            overdue = [env_id for env_id, calls in self._calls.items() if self._is_overdue(env_id, calls, now)]
        for env_id in overdue:
            self.forget(env_id)
            self._end(env_id)

    def _is_overdue(self, env_id: int, calls: deque[tuple[Future[Any], Any]], now: float) -> bool:
        _, pending = wait([call for call, _ in calls], at_least=0, timeout=0.0)
        # The calls of a worker run in their order.
        for _ in range(len(calls) - len(pending)):
            calls.popleft()
            self._since.pop(env_id, None)
        limit = self._limits_s[env_id]
        if limit is None or not calls or not _is_there(calls[0][1]):
            return False
        return now - self._since.setdefault(env_id, now) > limit


def _is_there(argument: Any) -> bool:
    return argument.done() if isinstance(argument, Future) else True
