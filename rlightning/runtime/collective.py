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
from rlightning.runtime.future import Future, gather
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
    futures: list[Future[Any] | None] = [None] * len(calls)
    local: dict[int, list[int]] = {}
    for index, call in enumerate(calls):
        worker = call.handle.worker if isinstance(call.handle, PartHandle) else call.handle
        if isinstance(worker, LocalHandle):
            local.setdefault(id(worker.target), []).append(index)
        else:
            futures[index] = call.start()

    def run(indices: list[int]) -> None:
        for index in indices:
            futures[index] = calls[index].start()

    if len(local) == 1:
        run(*local.values())
    else:
        threads = [
            threading.Thread(target=copy_context().run, args=(run, indices), name=calls[indices[0]].handle.name)
            for indices in local.values()
        ]
        for thread in threads:
            # A thread that waits for ever must not keep the process from ending.
            thread.daemon = True
            thread.start()
        for thread in threads:
            thread.join(_left(deadline))
    made = [future for future in futures if future is not None]
    if len(made) == len(calls):
        with suppress(WorkerError, CallTimeout):
            return gather(made, _left(deadline))
    failures = _failures(made, deadline)
    late = [
        f"{call.handle.name}.{call.method.__name__}"
        for call, future in zip(calls, futures, strict=True)
        if future is None or not future.done()
    ]
    if late:
        failures.append(CallTimeout(f"no answer within {timeout} s from {len(late)} calls: {', '.join(late[:10])}"))
    if not failures:
        return gather(made)  # the last answers came meanwhile
    # Outside of an except clause: the __cause__ of an error is what happened in the worker.
    raise min(failures, key=_is_a_consequence)


def _failures(futures: Sequence[Future[Any]], deadline: float | None) -> list[Exception]:
    """List the failures in the order of the calls, so that the same failures give the same error."""
    failures: list[Exception] = []
    for future in futures:
        try:
            future.result(_left(deadline))
        except WorkerError as error:
            failures.append(error)
        except CallTimeout:
            pass  # calls without an answer are reported by one error
    return failures


def _is_a_consequence(error: Exception) -> bool:
    """Whether an error only says that another worker did not answer, so that the error of that one says more."""
    return isinstance(error, CallTimeout) or isinstance(error.__cause__, CallTimeout | PeerLost)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
