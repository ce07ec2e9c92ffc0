"""Workers that are objects of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rlightning.errors import WorkerError, call_failure
from rlightning.runtime.future import Future, LocalFuture, PendingFuture, resolve
from rlightning.runtime.handle import WorkerHandle, WorkerInfo

R = TypeVar("R")


class LocalHandle(WorkerHandle):
    """Calls methods of an object at once, or in a thread beside this one.

    A failure is stored in the future, as that of a remote worker is, and raised by ``result``.
    """

    def __init__(self, target: Any, name: str) -> None:
        self.target, self.name = target, name

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        bound: Callable[..., R] = getattr(self.target, method.__name__)
        try:
            if not kwargs:
                return LocalFuture(bound(*map(resolve, args)))
            named = {name: resolve(value) for name, value in kwargs.items()}
            return LocalFuture(bound(*map(resolve, args), **named))
        except Exception as error:
            return _failed_argument(error, args, kwargs) or self._failed(error, method.__name__)

    def call_split(self, count: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Future[Any]]:
        if count < 2:
            raise ValueError("one item needs no splitting: use call")
        outcome = self.call(method, *args, **kwargs)
        try:
            items = outcome.result()
        except WorkerError:
            return [outcome] * count
        if len(items) != count:
            wrong = ValueError(f"the list has {len(items)} items, {count} were expected")
            return [self._failed(wrong, method.__name__)] * count
        return [LocalFuture(item) for item in items]

    def call_beside(self, channel: str, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        future: PendingFuture[R] = PendingFuture(self.name, method.__name__)
        call = partial(self.call, method, *args, **kwargs)
        # A thread of its own: a call may wait for another one, and no number of threads would be enough for all.
        name = f"{self.name}.{method.__name__}"
        threading.Thread(target=future.settle_by, args=(call,), name=name, daemon=True).start()
        return future

    def run(self, function: Callable[..., R], *args: Any, on: str = "", method: str = "") -> Future[R]:
        try:
            return LocalFuture(function(self.target, *map(resolve, args)))
        except Exception as error:
            return self._failed(error, method or function.__name__)

    def info(self) -> WorkerInfo:
        return WorkerInfo(self.name, "local", remote=False)

    def _failed(self, error: BaseException, method: str) -> LocalFuture[Any]:
        return LocalFuture(error=call_failure(error, self.name, method))


def _failed_argument(error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LocalFuture[Any] | None:
    """Return the argument that a call failed with, if any: the call fails as its argument did, without a new error."""
    for value in (*args, *kwargs.values()):
        if type(value) is LocalFuture and value._error is error:
            return value
    return None
