"""Short calls on a worker beside its other calls: by a socket where it is another process of this machine.

A call of a Ray actor passes several threads of both processes, and takes milliseconds where cores are few. A message by
a socket wakes just the thread that answers it. It is for calls that carry next to nothing and that somebody waits for.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from rlightning.errors import CallTimeout, WorkerError, raised_by
from rlightning.runtime.exit_code import own_process
from rlightning.runtime.future import Future, LocalFuture, gather
from rlightning.runtime.handle import WorkerHandle
from rlightning.runtime.location import own_location

R = TypeVar("R")
T = TypeVar("T")

_MEET_S = 10.0
"""Seconds that a worker listens for the one who asked it to, and that the connection may take."""


class FastChannel(Protocol):
    """A way to make calls on a worker beside its other calls."""

    name: str
    """Role and index of the worker, for messages."""

    def call(self, method: Callable[..., R], *args: Any) -> Future[R]:
        """Call a method, named by the function itself: on an object of this process at once, else without waiting.

        Calls on another process are worked on one after the other.
        """


class HandleChannel:
    """Calls by a channel of the worker's handle; see ``WorkerHandle.channel``."""

    def __init__(self, handle: WorkerHandle, channel: str) -> None:
        self.name, self._channel = handle.name, handle.channel(channel)

    def call(self, method: Callable[..., R], *args: Any) -> Future[R]:
        return self._channel.call(method, *args)


class SocketChannel:
    """Calls by a socket, for one thread at a time; a thread of the worker answers them until this object ends.

    Args:
        handle: The worker.
        node: Its node.
        descriptor: Of the socket; closed with this object.
    """

    def __init__(self, handle: WorkerHandle, node: str, descriptor: int) -> None:
        self.name, self._handle, self._node = handle.name, handle, node
        self.connection: Connection[Any, Any] = Connection(descriptor)
        self._open: deque[SocketFuture[Any]] = deque()  # answers come in the order of the calls

    def call(self, method: Callable[..., R], *args: Any) -> Future[R]:
        future: SocketFuture[R] = SocketFuture(self, method.__name__)
        self._open.append(future)
        try:
            self.connection.send((method.__name__, args))
        except OSError:
            self._cut()
        return future

    def read(self) -> None:
        """Take the next answer, which is there or on its way."""
        try:
            value, error, text = self.connection.recv()
        except (EOFError, OSError):
            self._cut()
            return
        future = self._open.popleft()
        future.outcome = LocalFuture(value, None if error is None else self._blame(error, text, future.method))

    def _cut(self) -> None:
        """Ask by a call what has become of the worker; that fails when its process is gone, and says how it ended."""
        while self._open:
            future = self._open.popleft()
            future.outcome = self._handle.run(_not_gone, on=self.name, method=future.method)

    def _blame(self, error: Exception, text: str, method: str) -> WorkerError:
        if isinstance(error, WorkerError):
            return error.on_node(self._node)
        blamed = WorkerError(f"{type(error).__name__}: {error}", *raised_by(error, self.name, method), self._node)
        blamed.add_note(f"The worker's own traceback:\n{text}")
        blamed.__cause__ = error
        return blamed


class SocketFuture(Future[T]):
    """The result of a call by a socket."""

    __slots__ = ("channel", "method", "outcome")

    def __init__(self, channel: SocketChannel, method: str) -> None:
        self.channel, self.method = channel, method
        self.outcome: Future[Any] | None = None

    @classmethod
    def _fetch(cls, futures: Sequence[Any], timeout: float | None) -> list[Any]:
        _, late = cls._wait(futures, len(futures), timeout)
        if late:
            calls = ", ".join(f"{future.channel.name}.{future.method}" for future in late[:10])
            raise CallTimeout(f"no answer within {timeout} s from {len(late)} calls: {calls}")
        return [future.outcome.result(_MEET_S) for future in futures]

    @classmethod
    def _wait(cls, futures: Sequence[Any], at_least: int, timeout: float | None) -> tuple[list[Any], list[Any]]:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            pending = [future for future in futures if future.outcome is None]
            is_enough = len(futures) - len(pending) >= at_least
            left = 0.0 if is_enough else None if until is None else max(0.0, until - time.monotonic())
            channels = {future.channel.connection.fileno(): future.channel for future in pending}
            messages = _poll(channels, left) if channels else []
            if not messages:
                return [future for future in futures if future.outcome is not None], pending
            for descriptor in messages:
                channels[descriptor].read()


def _poll(descriptors: Iterable[int], timeout: float | None) -> list[int]:
    """Wait until something can be read from some descriptors or they are cut; gives which, none after the timeout."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(None if timeout is None else 1e3 * timeout)]


def open_channels(handles: Sequence[WorkerHandle], channel: str, timeout_s: float | None = None) -> list[FastChannel]:
    """Open a channel to each of some workers.

    Args:
        handles: The workers.
        channel: Channel of those that are objects of this process, live on another machine, or cannot be reached by a
            socket for another reason.
        timeout_s: Seconds that they may take to answer.
    """
    offers = gather([handle.run(_listen, own_process()) for handle in handles], timeout_s)
    return [
        _connect(handle, *offer) or HandleChannel(handle, channel)
        for handle, offer in zip(handles, offers, strict=True)
    ]


def _listen(worker: Any, caller: tuple[str, int]) -> tuple[str, str]:
    """Listen for a caller; gives address and node, both empty where it is this process or on another machine."""
    here = own_process()
    if not here[0] or here[0] != caller[0] or here == caller:
        return "", ""
    # A name that begins with a zero byte is no file, so that nothing is left behind. Only Linux has such names, and
    # only there does a process know its space.
    address = f"\0rlightning-{uuid.uuid4().hex}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(1)
    listener.settimeout(_MEET_S)
    threading.Thread(target=_serve, args=(worker, listener), name="fast-channel", daemon=True).start()
    return address, own_location()[0]


def _connect(handle: WorkerHandle, address: str, node: str) -> SocketChannel | None:
    if not address:
        return None
    plug = socket.socket(socket.AF_UNIX)
    with suppress(OSError):  # processes of one kernel may still be in different networks, as containers are
        plug.settimeout(_MEET_S)
        plug.connect(address)
        if _is_own_user(plug):
            plug.settimeout(None)
            return SocketChannel(handle, node, plug.detach())
    plug.close()
    return None


def _serve(worker: Any, listener: socket.socket) -> None:
    """Answer the one who connects until that one hangs up."""
    with suppress(EOFError, OSError):  # so ends a channel, also one that nobody ever used
        with listener:
            plug, _ = listener.accept()
            while not _is_own_user(plug):
                plug.close()
                plug, _ = listener.accept()
        connection: Connection[Any, Any] = Connection(plug.detach())
        while True:
            method, args = connection.recv()
            connection.send(_answer(worker, method, args))


def _answer(worker: Any, method: str, args: tuple[Any, ...]) -> tuple[Any, Exception | None, str]:
    try:
        return getattr(worker, method)(*args), None, ""
    except Exception as error:
        text = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 (our own bytes)
        except Exception:  # a class may keep what cannot travel, or want other arguments than it gives
            return None, RuntimeError(f"{type(error).__name__}: {error}"), text
        return None, error, text


def _is_own_user(plug: socket.socket) -> bool:
    """Tell whether the process at the other end is of the same user: messages are pickles, which run code."""
    _, user, _ = struct.unpack("3i", plug.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def _not_gone(_worker: Any) -> None:
    raise ConnectionError("the channel to this process broke although it lives: does an answer not travel?")
