"""Short calls on a worker beside its other calls: by a socket where it is another process of this machine.

A call of a Ray actor passes several threads of both processes, and takes milliseconds where cores are few. A message by
a socket wakes one thread. It is for calls with short arguments and short answers that the caller waits for.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
import sys
import threading
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from rlightning.errors import call_failure
from rlightning.runtime.future import Future, LocalFuture, gather
from rlightning.runtime.handle import WorkerHandle
from rlightning.runtime.location import own_location

R = TypeVar("R")
T = TypeVar("T")

_CONNECT_S = 10.0
"""Seconds that a worker listens for its caller, and that the connection may take."""
_PROCESS = uuid.uuid4().hex
"""Names this process."""


class FastChannel(Protocol):
    """A way to make calls on a worker beside its other calls."""

    name: str
    """Role and index of the worker, for messages."""

    def call(self, method: Callable[..., R], *args: Any) -> Future[R]:
        """Call a method, named by the function itself: on an object of this process at once, else without waiting.

        Calls on another process run one after the other.
        """


class SocketChannel:
    """Calls by a socket, made by one thread at a time; a thread of the worker answers them until this object ends.

    Args:
        handle: The worker.
        node: Its node.
        descriptor: Of the socket; closed with this object.
    """

    def __init__(self, handle: WorkerHandle, node: str, descriptor: int) -> None:
        self.name, self._handle, self._node = handle.name, handle, node
        self.connection = Connection(descriptor)
        self._pending: deque[SocketFuture[Any]] = deque()  # answers come in the order of the calls

    def call(self, method: Callable[..., R], *args: Any) -> Future[R]:
        future: SocketFuture[R] = SocketFuture(self, method.__name__)
        self._pending.append(future)
        try:
            self.connection.send((method.__name__, args))
        except OSError:
            self._fail_pending()
        return future

    def read(self) -> None:
        """Read the next answer, which is there or on its way."""
        try:
            value, error, text = self.connection.recv()
        except (EOFError, OSError):
            self._fail_pending()
            return
        future = self._pending.popleft()
        if error is None:
            future.outcome = LocalFuture(value)
        else:
            note = f"The worker's own traceback:\n{text}"
            future.outcome = LocalFuture(error=call_failure(error, self.name, future.method, self._node, note))

    def _fail_pending(self) -> None:
        """Replace each answer by that of a call that always fails: with the end of the process, if it has ended."""
        while self._pending:
            future = self._pending.popleft()
            future.outcome = self._handle.run(_raise_broken, on=self.name, method=future.method)


class SocketFuture(Future[T]):
    """The result of a call by a socket."""

    __slots__ = ("channel", "method", "outcome", "worker")

    def __init__(self, channel: SocketChannel, method: str) -> None:
        self.channel, self.worker, self.method = channel, channel.name, method
        self.outcome: Future[Any] | None = None

    def _open(self) -> T:
        assert self.outcome is not None
        value: T = self.outcome.result(_CONNECT_S)
        return value

    @classmethod
    def _ready(cls, futures: Sequence[Any]) -> list[Any]:
        while cls._read(futures, 0.0):
            pass
        return [future for future in futures if future.outcome is not None]

    @classmethod
    def _block(cls, pending: Sequence[Any], count: int, timeout: float | None) -> None:
        cls._read(pending, timeout)

    @staticmethod
    def _read(futures: Sequence[Any], timeout: float | None) -> bool:
        """Wait for answers and read one of each channel that has some; return whether there was any."""
        channels = {future.channel.connection.fileno(): future.channel for future in futures if future.outcome is None}
        if not channels:
            return False
        poll = select.poll()
        for descriptor in channels:
            poll.register(descriptor, select.POLLIN)
        readable = poll.poll(None if timeout is None else 1e3 * timeout)
        for descriptor, _ in readable:
            channels[descriptor].read()
        return bool(readable)


def open_channels(handles: Sequence[WorkerHandle], channel: str, timeout_s: float | None = None) -> list[FastChannel]:
    """Open a fast channel to each of some workers.

    Args:
        handles: The workers.
        channel: Channel of their handles, for those that are objects of this process, live on another machine, or
            cannot be reached by a socket for another reason.
        timeout_s: Seconds that they may take to answer.
    """
    offers = gather([handle.run(_listen, _PROCESS) for handle in handles], timeout_s)
    return [_connect(handle, *offer) or handle.channel(channel) for handle, offer in zip(handles, offers, strict=True)]


def _listen(worker: Any, caller: str) -> tuple[str, str]:
    """Listen for a caller; return address and node, both empty if it is this process."""
    # A name that begins with a zero byte is no file, so that nothing is left behind. Only Linux has such names.
    if caller == _PROCESS or sys.platform != "linux":
        return "", ""
    address = f"\0rlightning-{uuid.uuid4().hex}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(1)
    listener.settimeout(_CONNECT_S)
    threading.Thread(target=_serve, args=(worker, listener), name="fast-channel", daemon=True).start()
    return address, own_location()[0]


def _connect(handle: WorkerHandle, address: str, node: str) -> SocketChannel | None:
    """Return a channel by a socket, or None if there is no such address on this machine."""
    if not address:
        return None
    plug = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        plug.settimeout(_CONNECT_S)
        plug.connect(address)
        if _is_own_user(plug):
            plug.settimeout(None)
            return SocketChannel(handle, node, plug.detach())
    plug.close()
    return None


def _serve(worker: Any, listener: socket.socket) -> None:
    """Answer the calls of the first caller of the same user until it closes the socket."""
    with suppress(EOFError, OSError):  # also of one that never came
        with listener:
            plug, _ = listener.accept()
            while not _is_own_user(plug):
                plug.close()
                plug, _ = listener.accept()
        calls = Connection(plug.detach())
        while True:
            method, args = calls.recv()
            calls.send(_answer(worker, method, args))


def _answer(worker: Any, method: str, args: tuple[Any, ...]) -> tuple[Any, Exception | None, str]:
    """Return the value of a call, or its exception with the traceback."""
    try:
        return getattr(worker, method)(*args), None, ""
    except Exception as error:
        text = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (our own bytes)
        except Exception:  # a class may hold what cannot be pickled, or want other arguments than it gives
            return None, RuntimeError(f"{type(error).__name__}: {error}"), text
        return None, error, text


def _is_own_user(plug: socket.socket) -> bool:
    """Whether the process at the other end is of the same user: messages are pickles, which run code."""
    _, user, _ = struct.unpack("3i", plug.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _raise_broken(_worker: Any) -> None:
    raise ConnectionError("the channel to this process broke although it lives: can its answer not be pickled?")
