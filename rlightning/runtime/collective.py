"""Calls on several workers that may wait for each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from rlightning.errors import CallTimeout, PeerLost, WorkerError
from rlightning.runtime.future import Future, PendingFuture, gather, no_answer
from rlightning.runtime.handle import PartHandle, WorkerHandle
from rlightning.runtime.local import LocalHandle


@dataclass(frozen=True, slots=True)
class Call:
    """One call on one worker, or on a part of it.

    Attributes:
        handle: The worker or the part.
        method: What is called, named by the function itself.
        args: Its arguments; futures are opened at the worker.
        kwargs: Those by name.
    """

    handle: WorkerHandle | PartHandle
    method: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def start(self) -> Future[Any]:
        """Make the call."""
        return self.handle.call(self.method, *self.args, **self.kwargs)


def collective_call(calls: Sequence[Call], timeout: float | None = None) -> list[Any]:
    """Make all calls at once and wait for all of them, so that each may wait for the others.

    Local workers run in a thread each, and a single one in the caller's thread. Calls on one worker run in the order
    given.

    Args:
        calls: The calls.
        timeout: Seconds for all of them; None waits for ever.

    Returns:
        The results, in order.

    Raises:
        WorkerError: If a call failed. Where several did, the first of those that did not merely wait for the others.
        CallTimeout: If a call is not over in time.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    futures: list[Future[Any]] = []
    local: dict[int, list[tuple[Call, PendingFuture[Any]]]] = {}
    for call in calls:
        worker = call.handle.worker if isinstance(call.handle, PartHandle) else call.handle
        if isinstance(worker, LocalHandle):
            pending: PendingFuture[Any] = PendingFuture(call.handle.name, call.method.__name__)
            local.setdefault(id(worker.target), []).append((call, pending))
            futures.append(pending)
        else:
            futures.append(call.start())
    if len(local) == 1:
        _run(*local.values())
    else:
        for run in local.values():
            # A daemon, since a thread that waits for ever must not keep the process from ending.
            name, target = run[0][1].worker, copy_context().run
            threading.Thread(target=target, args=(_run, run), name=name, daemon=True).start()
    with suppress(WorkerError, CallTimeout):
        return gather(futures, _left(deadline))
    failures: list[Exception] = []
    for future in futures:
        with suppress(CallTimeout):
            try:
                future.result(_left(deadline))
            except WorkerError as error:
                failures.append(error)
    if not all(future.done() for future in futures):
        failures.append(no_answer(futures, timeout))
    if not failures:
        return gather(futures)  # the last answers came meanwhile
    # Outside of an except clause: the __cause__ of an error is what happened in the worker.
    raise min(failures, key=_is_a_consequence)


def _run(calls: Sequence[tuple[Call, PendingFuture[Any]]]) -> None:
    for call, future in calls:
        future.settle_by(call.start)


def _is_a_consequence(error: Exception) -> bool:
    """Whether an error only says that another worker did not answer, so that the error of that one says more."""
    return isinstance(error, CallTimeout) or isinstance(error.__cause__, CallTimeout | PeerLost)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
