"""A worker as its callers see it, wherever it lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rlightning.errors import raising_as
from rlightning.runtime.future import Future

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Where a worker lives.

    Attributes:
        name: Role and index, such as ``env[3]``.
        node: Id of its node; ``local`` in this process.
        remote: Whether it has a process of its own.
    """

    name: str
    node: str
    remote: bool


class WorkerHandle(Protocol):
    """A reference to a worker; what is implemented here holds for a worker without channels of its own."""

    target: Any
    """The worker as the caller passed it: an object, a Ray actor handle or an ``InProcessWorker``."""
    name: str
    """Role and index, for messages."""

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """Call a method, named by the function itself; arguments that are futures are opened at the worker."""

    def call_split(self, count: int, method: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Future[Any]]:
        """Call a method that returns a list of ``count`` items, two or more; return one future for each item."""

    def call_beside(self, channel: str, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """Call a method beside other calls, without waiting for it; calls by one channel may lose their order here."""
        return self.channel(channel).call(method, *args, **kwargs)

    def run(self, function: Callable[..., R], *args: Any, on: str = "", method: str = "") -> Future[R]:
        """Run a function where the worker lives, with the worker as its first argument, in the order of the calls.

        Args:
            function: A function of a module.
            *args: Its further arguments; futures are opened there.
            on: The worker that messages name; this one by default.
            method: The method that messages name; the function by default.
        """

    def part(self, name: str) -> PartHandle:
        """Return a handle of an object that the worker holds as the attribute ``name``."""
        return PartHandle(self, name)

    def channel(self, name: str) -> WorkerHandle:
        """Return a handle whose calls run beside those of other channels, in threads of their own.

        It is this handle itself where the worker lives here, or was started without the channel.
        """
        return self

    def keep(self, value: Future[R]) -> Future[R]:
        """Store a value where this worker and others of its kind read it, so that it is sent once; see ``share``."""
        return value

    def info(self) -> WorkerInfo:
        """Return where the worker lives."""

    def stop(self) -> None:
        """End the process of the worker if it has one of its own."""
        return


class PartHandle:
    """Calls methods of an object that a worker holds as an attribute, in one order with the worker's own calls.

    What only the framework calls is such a part, so that it does not stand among the methods of the worker.
    """

    __slots__ = ("_part", "name", "worker")

    def __init__(self, worker: WorkerHandle, part: str) -> None:
        self.worker, self.name, self._part = worker, worker.name, part

    def call(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> Future[R]:
        """Call a method, named by the function itself; arguments that are futures are opened at the worker."""
        called, values = method.__name__, (*args, *kwargs.values())
        return self.worker.run(_call_part, self._part, self.name, called, tuple(kwargs), *values, method=called)


def _call_part(worker: Any, part: str, *call: Any) -> Any:
    return call_held(getattr(worker, part), *call)


def call_held(held: Any, name: str, method: str, names: tuple[str, ...], *values: Any) -> Any:
    """Call a method of an object that a worker holds; an exception is reported as one of ``name``.

    Args:
        held: The object.
        name: Name for messages.
        method: The method.
        names: Names of the last arguments.
        *values: All arguments.
    """
    count = len(values) - len(names)
    with raising_as(name, method):
        return getattr(held, method)(*values[:count], **dict(zip(names, values[count:], strict=True)))


def as_handle(worker: Any, name: str = "worker") -> WorkerHandle:
    """Wrap an object, a Ray actor handle or an ``InProcessWorker``. Local and Ray differ from here on only."""
    from rlightning.runtime.in_process import InProcessHandle, InProcessWorker
    from rlightning.runtime.local import LocalHandle

    if isinstance(worker, InProcessWorker):
        return InProcessHandle(worker, name)
    if type(worker).__module__.startswith("ray."):
        from rlightning.runtime.ray_backend import RayHandle

        return RayHandle(worker, name)
    return LocalHandle(worker, name)


def share(value: Future[R], receivers: Sequence[WorkerHandle]) -> list[Future[R]]:
    """Return what to pass to each of several workers, so that a value is sent once to all that live elsewhere.

    A value of this process that is passed on as it is would be sent with each call. A value whose ``num_bytes`` says
    that it is small is sent so, and a worker that lives here gets it as it is.

    Raises:
        WorkerError: If there is no value, because the call that was to return it failed.
    """
    kinds = [type(receiver) for receiver in receivers]
    kept = {
        kind: receiver.keep(value) if kinds.count(kind) > 1 else value
        for kind, receiver in dict(zip(kinds, receivers, strict=True)).items()
    }
    return [kept[kind] for kind in kinds]
