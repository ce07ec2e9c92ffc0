"""Requests that overlap: an event loop in a thread of its own, on which a policy's coroutines run."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch


class CoroutineThread:
    """Runs coroutines for callers in other threads; they take turns wherever one awaits.

    All of it is under ``torch.inference_mode``, which belongs to a thread and not to a coroutine.
    """

    def __init__(self, name: str) -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_serve, args=(loop,), name=name, daemon=True)
        thread.start()
        self._loop = loop
        weakref.finalize(self, _end, loop, thread)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the loop and wait for its result, which is awaited if it can be.

        The function sees the context variables of the caller.
        """
        return asyncio.run_coroutine_threadsafe(_awaited(function, args, kwargs), self._loop).result()


def hide_coroutines(cls: type[Any]) -> None:
    """Make the coroutine functions of a class plain ones that give the coroutine.

    The result can be awaited as before. Ray, however, runs every method of a class with a coroutine function on one
    event loop, where plain methods block all others and calls lose their order.
    """
    for name, member in inspect.getmembers_static(cls):
        function = getattr(member, "__func__", member)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            plain = _plain(function)
            setattr(cls, name, type(member)(plain) if isinstance(member, staticmethod | classmethod) else plain)


def is_coroutine(method: Callable[..., Any]) -> bool:
    """Whether a method was written as a coroutine, hidden or not."""
    return inspect.iscoroutinefunction(inspect.unwrap(method))


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def start(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return start


async def _awaited(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with torch.inference_mode():
        while not _is_over(loop):
            pass
    loop.close()


def _is_over(loop: asyncio.AbstractEventLoop) -> bool:
    """Run a loop until it is stopped; False if a coroutine ended it by ``sys.exit``, which its caller gets."""
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt):
        return False  # the other requests wait for the loop to go on
    return True


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join()
