"""A result that may not be there yet, and that can be passed on unopened."""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

from rlightning.errors import CallTimeout, call_failure

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TURN_S = 0.005
"""Seconds to wait for futures of one kind while others of another kind are pending, too."""


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
        """Return whether ``result`` would return or raise at once."""
        return bool(type(self)._ready([self]))

    # Each kind of future implements the following for several of its kind.

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        """Wait for the values of futures and return them."""
        try:
            wait(futures, len(futures), timeout)
        except CallTimeout:
            raise no_answer(futures, timeout) from None
        return [future._open() for future in futures]

    @classmethod
    def _ready(cls, futures: Sequence[Any]) -> list[Any]:
        """Return the futures that are done."""
        raise NotImplementedError

    @classmethod
    def _block(cls, pending: Sequence[Any], count: int, timeout: float | None) -> None:
        """Wait until ``count`` futures that were not done are done; it may return earlier."""
        raise NotImplementedError


def no_answer(futures: Sequence[Any], timeout: float | None) -> CallTimeout:
    """Return the error that names the calls among ``futures`` that are not done."""
    late = [f"{future.worker}.{future.method}" for future in futures if not future.done()]
    return CallTimeout(f"no answer within {timeout} s from {len(late)} calls: {', '.join(late[:10])}")


class LocalFuture(Future[T]):
    """The outcome of a call that already ran in this process."""

    __slots__ = ("_error", "_trace", "_value")

    def __init__(self, value: T | None = None, error: BaseException | None = None) -> None:
        self._value, self._error = value, error
        self._trace = None if error is None else error.__traceback__

    def result(self, timeout: float | None = None) -> T:
        if self._error is not None:
            # Each raise would add its frames to the traceback of the one before.
            raise self._error.with_traceback(self._trace)
        return self._value  # type: ignore[return-value]

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        return [future.result() for future in futures]

    @classmethod
    def _ready(cls, futures: Sequence[Any]) -> list[Any]:
        return list(futures)


class JointFuture(Future[None]):
    """The end of several calls; it fails as the first of them that fails."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Future[Any]]) -> None:
        self._parts = list(parts)

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        gather([part for future in futures for part in future._parts], timeout)
        return [None] * len(futures)

    @classmethod
    def _ready(cls, futures: Sequence[Any]) -> list[Any]:
        return [future for future in futures if not wait(future._parts, 0, 0.0)[1]]

    @classmethod
    def _block(cls, pending: Sequence[Any], count: int, timeout: float | None) -> None:
        with suppress(CallTimeout):
            wait([part for future in pending for part in wait(future._parts, 0, 0.0)[1]], 1, timeout)


class PendingFuture(Future[T]):
    """The outcome of a call that runs in another thread of this process."""

    __slots__ = ("_outcome", "method", "worker")

    def __init__(self, worker: str, method: str) -> None:
        self.worker, self.method = worker, method
        self._outcome: concurrent.futures.Future[Future[T]] = concurrent.futures.Future()

    def settle(self, outcome: Future[T]) -> None:
        """Set the outcome, once; only the thread of the call does so."""
        self._outcome.set_result(outcome)

    def settle_by(self, call: Callable[[], Future[T]]) -> None:
        """Make the call in this thread and set its outcome."""
        try:
            outcome = call()
        except BaseException as error:
            # Also one that ends threads, such as SystemExit: else the future would never have a result.
            outcome = LocalFuture(error=call_failure(error, self.worker, self.method))
        self.settle(outcome)

    def _open(self) -> T:
        return self._outcome.result().result()

    @classmethod
    def _ready(cls, futures: Sequence[Any]) -> list[Any]:
        return [future for future in futures if future._outcome.done()]

    @classmethod
    def _block(cls, pending: Sequence[Any], count: int, timeout: float | None) -> None:
        outcomes = {future._outcome for future in pending}
        until = concurrent.futures.FIRST_COMPLETED if count < len(pending) else concurrent.futures.ALL_COMPLETED
        concurrent.futures.wait(outcomes, timeout, until)


def gather(futures: Iterable[Future[T]], timeout: float | None = None) -> list[T]:
    """Wait for all values, in order, with one fetch for each kind of future.

    >>> gather([LocalFuture(1), LocalFuture(2)])
    [1, 2]

    Raises:
        WorkerError: The first failure, in the order of the futures of its kind.
        CallTimeout: If a value is missing after ``timeout`` seconds.
    """
    futures = list(futures)
    kinds = _by_kind(futures)
    if len(kinds) == 1:
        return type(futures[0])._fetch(futures, timeout)
    values: dict[int, T] = {}
    for kind, members in kinds.items():
        values.update(zip(map(id, members), kind._fetch(members, timeout), strict=True))
    return [values[id(future)] for future in futures]


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
    wanted, kinds = min(at_least, len(futures)), _by_kind(futures)
    until = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        ready = {id(future) for kind, members in kinds.items() for future in kind._ready(members)}
        done, pending = [f for f in futures if id(f) in ready], [f for f in futures if id(f) not in ready]
        left = until - time.monotonic()
        if len(done) >= wanted:
            return done, pending
        if left <= 0:
            raise CallTimeout(f"{len(done)} of {len(futures)} calls answered within {timeout} s, {at_least} wanted")
        waiting = _by_kind(pending)
        for kind, members in waiting.items():
            # A thread cannot wait for two kinds at once: they take turns.
            turn = min(left, _TURN_S) if len(waiting) > 1 else None if timeout is None else left
            kind._block(members, 1 if len(waiting) > 1 else wanted - len(done), turn)


def _by_kind(futures: Iterable[Future[T]]) -> dict[type[Future[Any]], list[Future[T]]]:
    kinds: dict[type[Future[Any]], list[Future[T]]] = defaultdict(list)
    for future in futures:
        kinds[type(future)].append(future)
    return kinds


def resolve(value: Any) -> Any:
    """Return the value of a future; other values pass."""
    if type(value) is LocalFuture and value._error is None:
        return value._value
    return value.result() if isinstance(value, Future) else value
