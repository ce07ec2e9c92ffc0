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
        """Begin to count."""
        return cls([0] * workers, [0] * workers)

    def metrics(self) -> dict[str, float]:
        """Give the counters that are not 0, as metrics."""
        return {f"faults/{kind}": float(count) for kind, count in self.kinds.items()}


class CallWatch:
    """Knows which calls of each worker are under way, and since when; any thread may use it.

    It sees no more than whether futures are done, so a call counts from the first look that finds it running.

    Args:
        limits_s: Seconds that a call of each worker may take, by env id; None is no limit.
        clock: Tells the seconds.
    """

    def __init__(self, limits_s: Sequence[float | None], clock: Callable[[], float] = time.monotonic) -> None:
        self._limits_s, self._clock = limits_s, clock
        # Only unfinished calls are of interest, but a result that nobody has looked at is kept until the next look.
        self._calls: dict[int, deque[tuple[Future[Any], Any]]] = {}
        self._since: dict[int, float] = {}
        self._lock = threading.Lock()

    def started(self, env_id: int, call: Future[Any], argument: Any = None) -> None:
        """Take note of a call, which cannot run before its argument is there."""
        if self._limits_s[env_id] is not None:
            with self._lock:
                self._calls.setdefault(env_id, deque()).append((call, argument))

    def forget(self, env_id: int) -> None:
        """Take note that a worker is another one."""
        with self._lock:
            self._calls.pop(env_id, None)
            self._since.pop(env_id, None)

    def overdue(self) -> list[int]:
        """Look at the calls: lists the workers whose current one takes too long."""
        with self._lock:
            now = self._clock()
            return [env_id for env_id, calls in self._calls.items() if self._is_overdue(env_id, calls, now)]

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


class HangGuard:
    """Has a thread that ends workers whose calls take too long, whatever the others wait for meanwhile.

    Args:
        limits_s: Seconds that a call of each worker may take, by env id; None is no limit. Without any there is no
            thread.
        end: Ends the worker of an env id; called in the thread.
    """

    def __init__(self, limits_s: Sequence[float | None], end: Callable[[int], None]) -> None:
        limits = [limit for limit in limits_s if limit is not None]
        self.is_on = bool(limits)
        self._watch, self._end = CallWatch(limits_s), end
        self._look_every_s = min(_LONGEST_LOOK_S, min(limits, default=1.0) / 4)
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def started(self, env_id: int, call: Future[Any], argument: Any = None) -> None:
        """Take note of a call, which cannot run before its argument is there."""
        if not self.is_on:
            return
        self._watch.started(env_id, call, argument)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hang guard", daemon=True)
            self._thread.start()

    def forget(self, env_id: int) -> None:
        """Take note that a worker is another one."""
        self._watch.forget(env_id)

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._look_every_s):
            try:
                for env_id in self._watch.overdue():
                    self._watch.forget(env_id)
                    self._end(env_id)
            except Exception:
                logger.exception("envs that hang are not noticed any more")
                return


def _is_there(argument: Any) -> bool:
    return argument.done() if isinstance(argument, Future) else True
