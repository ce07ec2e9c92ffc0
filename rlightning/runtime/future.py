"""A result that may not be there yet, and that can be passed on unopened."""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from rlightning.errors import CallTimeout

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TURN_S = 0.005
"""Seconds that futures of one kind are waited for while those of another kind are, too."""


class Future(Generic[T_co]):
    """The result of a call on a worker.

    Pass it as an argument of another call and the value goes from worker to worker without coming here.
    """

    __slots__ = ()

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for the value.

        Args:
            timeout: Seconds to wait; None waits for ever.

        Raises:
            WorkerError: If the call failed; its cause is the original exception.
            CallTimeout: If there is no value in time.
        """
        return type(self)._fetch([self], timeout)[0]  # type: ignore[no-any-return]

    def done(self) -> bool:
        """Tell whether ``result`` would return or raise at once."""
        return not type(self)._wait([self], 1, 0.0)[1]

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        """Get the values of futures of this kind in one go."""
        raise NotImplementedError

    @classmethod
    def _wait(cls, futures: Sequence[Any], at_least: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        """Split futures of this kind into ready and pending ones."""
        raise NotImplementedError


class LocalFuture(Future[T]):
    """The outcome of a call that already ran in this process."""

    __slots__ = ("_error", "_trace", "_value")
    _kind: ClassVar[str] = "local"

    def __init__(self, value: T | None = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error
        self._trace = None if error is None else error.__traceback__

    def result(self, timeout: float | None = None) -> T:
        if self._error is not None:
            # Whoever asks raises it once more: the way to one must not be added to the way to the one before.
            raise self._error.with_traceback(self._trace)
        return self._value  # type: ignore[return-value]

    def done(self) -> bool:
        return True

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        return [future.result() for future in futures]

    @classmethod
    def _wait(cls, futures: Sequence[Any], at_least: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        return list(futures), []


class JointFuture(Future[None]):
    """There is a result when all of several futures have one."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Future[Any]]) -> None:
        self._parts = list(parts)

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        gather([part for future in futures for part in future._parts], timeout)
        return [None] * len(futures)

    @classmethod
    def _wait(cls, futures: Sequence[Any], at_least: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            open_parts = {id(future): wait(future._parts, 0, 0.0)[1] for future in futures}
            ready = [future for future in futures if not open_parts[id(future)]]
            left = None if deadline is None else deadline - time.monotonic()
            if len(ready) >= at_least or (left is not None and left <= 0):
                return ready, [future for future in futures if open_parts[id(future)]]
            try:
                wait([part for parts in open_parts.values() for part in parts], 1, left)
            except CallTimeout:
                return ready, [future for future in futures if open_parts[id(future)]]


class PendingFuture(Future[T]):
    """The outcome of a call that runs in another thread of this process."""

    __slots__ = ("_outcome", "method", "worker")

    def __init__(self, worker: str, method: str) -> None:
        self.worker, self.method = worker, method
        self._outcome: concurrent.futures.Future[Future[T]] = concurrent.futures.Future()

    def settle(self, outcome: Future[T]) -> None:
        """Take the outcome; only for whoever runs the call."""
        self._outcome.set_result(outcome)

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        _, late = concurrent.futures.wait([future._outcome for future in futures], timeout)
        if late:
            calls = [f"{future.worker}.{future.method}" for future in futures if future._outcome in late]
            raise CallTimeout(f"no answer within {timeout} s from {len(calls)} calls: {', '.join(calls[:10])}")
        return [future._outcome.result().result() for future in futures]

    @classmethod
    def _wait(cls, futures: Sequence[Any], at_least: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        left = {future._outcome for future in futures if not future._outcome.done()}
        until = math.inf if timeout is None else time.monotonic() + timeout
        while len(futures) - sum(future._outcome in left for future in futures) < at_least:
            patience = None if timeout is None else until - time.monotonic()
            if patience is not None and patience <= 0:
                break
            _, left = concurrent.futures.wait(left, patience, concurrent.futures.FIRST_COMPLETED)
        return [f for f in futures if f._outcome not in left], [f for f in futures if f._outcome in left]


def gather(futures: Iterable[Future[T]], timeout: float | None = None) -> list[T]:
    """Wait for all values, in order, with one fetch for each kind of future.

    >>> gather([LocalFuture(1), LocalFuture(2)])
    [1, 2]

    Raises:
        WorkerError: The first failure, in the order of the futures of its kind.
        CallTimeout: If a value is missing after ``timeout`` seconds.
    """
    futures = list(futures)
    kinds = {type(future) for future in futures}
    if len(kinds) == 1:
        return kinds.pop()._fetch(futures, timeout)
    places: dict[type[Future[Any]], list[int]] = defaultdict(list)
    for place, future in enumerate(futures):
        places[type(future)].append(place)
    values: list[Any] = [None] * len(futures)
    for kind, indices in places.items():
        for place, value in zip(indices, kind._fetch([futures[i] for i in indices], timeout), strict=True):
            values[place] = value
    return values


def wait(
    futures: Iterable[Future[T]], at_least: int = 1, timeout: float | None = None
) -> tuple[list[Future[T]], list[Future[T]]]:
    """Wait until at least some futures are ready.

    Args:
        futures: What to wait for.
        at_least: How many must be ready.
        timeout: Seconds to wait; None waits for ever.

    Returns:
        The ready and the pending ones, each in the order given.

    Raises:
        CallTimeout: If fewer than ``at_least`` are ready in time.
    """
    futures = list(futures)
    remote: dict[type[Future[Any]], list[Future[T]]] = defaultdict(list)
    for future in futures:
        if not isinstance(future, LocalFuture):
            remote[type(future)].append(future)
    ready: set[int] = {id(future) for future in futures if isinstance(future, LocalFuture)}
    until = math.inf if timeout is None else time.monotonic() + timeout
    while remote:
        for kind, members in remote.items():
            missing = min(at_least - sum(id(future) in ready for future in futures), len(members))
            left = None if timeout is None else max(0.0, until - time.monotonic())
            # Nobody can wait for two kinds at once: they take turns.
            longest = left if len(remote) == 1 else min(_TURN_S, _TURN_S if left is None else left)
            done, _ = kind._wait(members, max(0, missing), longest if missing > 0 else 0.0)
            ready.update(id(future) for future in done)
        count = sum(id(future) in ready for future in futures)
        if count >= min(at_least, len(futures)) or time.monotonic() >= until:
            break
    done, pending = [f for f in futures if id(f) in ready], [f for f in futures if id(f) not in ready]
    if len(done) < min(at_least, len(futures)):
        raise CallTimeout(f"{len(done)} of {len(futures)} calls answered within {timeout} s, {at_least} wanted")
    return done, pending


def resolve(value: Any) -> Any:
    """Open a future; other values pass."""
    if type(value) is LocalFuture and value._error is None:
        return value._value
    return value.result() if isinstance(value, Future) else value
