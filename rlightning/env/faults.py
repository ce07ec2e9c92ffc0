"""What can go wrong with an env, which worker gets another try, and which call takes too long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from rlightning.runtime import Future, wait

FaultKind = Literal["died", "raised", "timed_out", "not_finite"]
"""The process ended; the env raised or gave what it must not give; a call took too long; a number was not finite."""
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

_LONGEST_LOOK_S = 1.0
"""Seconds between two looks at calls that may hang."""


@dataclass(frozen=True, slots=True)
class Replacements:
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
    """Knows which calls of each worker are under way, and since when.

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
        limits = [limit for limit in limits_s if limit is not None]
        self.look_every_s = min(_LONGEST_LOOK_S, min(limits) / 4) if limits else None
        """Seconds between two looks; None if there is no limit."""

    def started(self, env_id: int, call: Future[Any], argument: Any = None) -> None:
        """Take note of a call, which cannot run before its argument is there."""
        if self._limits_s[env_id] is not None:
            self._calls.setdefault(env_id, deque()).append((call, argument))

    def forget(self, env_id: int) -> None:
        """Take note that a worker is another one."""
        self._calls.pop(env_id, None)
        self._since.pop(env_id, None)

    def overdue(self) -> list[int]:
        """Look at the calls: lists the workers whose current one takes too long."""
        now, late = self._clock(), []
        for env_id, calls in self._calls.items():
            _, pending = wait([call for call, _ in calls], at_least=0, timeout=0.0)
            # The calls of a worker run in their order.
            for _ in range(len(calls) - len(pending)):
                calls.popleft()
                self._since.pop(env_id, None)
            if calls and _is_there(calls[0][1]):
                limit = self._limits_s[env_id]
                if limit is not None and now - self._since.setdefault(env_id, now) > limit:
                    late.append(env_id)
        return late


def _is_there(argument: Any) -> bool:
    return argument.done() if isinstance(argument, Future) else True
