"""Admission of requests to a policy whose weights may be exchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any


class RolloutGate:
    """Requests share the policy; an update has it alone.

    ``with gate.request():`` lets any number in. ``with gate.update():`` stops new requests, waits for those inside,
    and lets requests in again at the end, also after an exception. A waiting update goes first.

    Args:
        waiting: Returns a context manager in which the time of each request that has to wait is spent.
    """

    def __init__(self, waiting: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        self._waiting = waiting
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._inside = 0
        self._updating = 0
        self._request = _Request(self)
        self._update = _Update(self)

    @property
    def num_requests(self) -> int:
        """Requests inside at this moment."""
        return self._inside

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait outside for a condition that an update, or a call of ``changed``, brings about."""
        if not condition():
            with self._condition, self._waiting():
                self._condition.wait_for(condition)

    def changed(self) -> None:
        """Check the conditions of ``wait_for`` again."""
        with self._condition:
            self._condition.notify_all()

    def request(self) -> _Request:
        """Enter as a request; waits while an update is waiting or running."""
        return self._request

    def update(self) -> _Update:
        """Enter as an update; waits until no request is inside."""
        return self._update


class _Request:
    __slots__ = ("_gate",)

    def __init__(self, gate: RolloutGate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        gate = self._gate
        with gate._lock:
            if gate._updating:
                with gate._waiting():
                    while gate._updating:
                        gate._condition.wait()
            gate._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gate = self._gate
        with gate._lock:
            gate._inside -= 1
            if gate._updating and not gate._inside:
                gate._condition.notify_all()


class _Update:
    __slots__ = ("_exclusive", "_gate")

    def __init__(self, gate: RolloutGate) -> None:
        self._gate = gate
        self._exclusive = threading.Lock()

    def __enter__(self) -> None:
        gate = self._gate
        with gate._condition:
            gate._updating += 1
        self._exclusive.acquire()
        with gate._condition:
            while gate._inside:
                gate._condition.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gate = self._gate
        self._exclusive.release()
        with gate._condition:
            gate._updating -= 1
            gate._condition.notify_all()
