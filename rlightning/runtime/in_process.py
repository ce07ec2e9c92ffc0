"""Workers in the process of another worker: a call between the two is a call of a method, and not a message."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rlightning.errors import ProtocolError, raising_as
from rlightning.runtime.future import Future
from rlightning.runtime.handle import WorkerHandle, WorkerInfo, call_held

R = TypeVar("R")

_WORKERS: dict[str, Any] = {}
"""The in-process workers of this process, by key."""


@dataclass(frozen=True, slots=True)
class InProcessWorker:
    """A reference to a worker in the process of another one, which groups accept like an object or an actor.

    Attributes:
        host: The worker whose process it is.
        key: Name of the worker in that process.
        name: Role and index.
    """

    host: WorkerHandle
    key: str
    name: str


def start_in_process(
    host: WorkerHandle, cls: type[Any], args: tuple[Any, ...], name: str
) -> tuple[InProcessWorker, Future[None]]:
    """Build a worker in the process of ``host``.

    Returns:
        The worker, and a future that raises a failure.
    """
    worker = InProcessWorker(host, uuid.uuid4().hex, name)
    return worker, host.run(_build, worker.key, name, cls, args, on=name, method="__init__")


def rebuild_in_process(worker: InProcessWorker, cls: type[Any], args: tuple[Any, ...]) -> Future[None]:
    """Build an in-process worker again; the one before must have been closed. The future raises a failure."""
    return worker.host.run(_build, worker.key, worker.name, cls, args, on=worker.name, method="__init__")


def end_in_process(worker: InProcessWorker) -> Future[None]:
    """Remove an in-process worker, which must have been closed before."""
    return worker.host.run(_forget, worker.key)


def in_process_worker(key: str) -> Any:
    """Return an in-process worker of this process.

    Raises:
        ProtocolError: If there is none of this key.
    """
    if key not in _WORKERS:
        raise ProtocolError("a worker that lived in this process is gone: its group was closed")
    return _WORKERS[key]


class InProcessHandle(WorkerHandle):
    """Calls methods of an in-process worker, in one order with the calls of its host."""

    def __init__(self, target: InProcessWorker, name: str) -> None:
        self.target, self.name, self._host = target, name, target.host

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        called, values = method.__name__, (*args, *kwargs.values())
        call = (self.target.key, self.name, called, tuple(kwargs), *values)
        return self._host.run(_call, *call, on=self.name, method=called)

    def call_split(self, count: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Future[Any]]:
        raise ProtocolError(f"{self.name} lives in the process of {self._host.name}, which does not split its answers")

    def run(self, function: Callable[..., R], *args: Any, on: str = "", method: str = "") -> Future[R]:
        on, method = on or self.name, method or function.__name__
        return self._host.run(_run, self.target.key, on, method, function, *args, on=on, method=method)

    def keep(self, value: Future[R]) -> Future[R]:
        return self._host.keep(value)

    def info(self) -> WorkerInfo:
        there = self._host.info()
        return WorkerInfo(self.name, there.node, there.remote)


def _build(_host: Any, key: str, name: str, cls: type[Any], args: tuple[Any, ...]) -> None:
    with raising_as(name, "__init__"):
        _WORKERS[key] = cls(*args)


def _forget(_host: Any, key: str) -> None:
    _WORKERS.pop(key, None)


def _call(_host: Any, key: str, *call: Any) -> Any:
    return call_held(in_process_worker(key), *call)


def _run(_host: Any, key: str, name: str, method: str, function: Callable[..., Any], *args: Any) -> Any:
    with raising_as(name, method):
        return function(in_process_worker(key), *args)
