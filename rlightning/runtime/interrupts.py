"""Blocks of code that a Ctrl-C may not break off."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Hold a Ctrl-C back until the end of the block; a second one is let through.

    While Ray starts or ends, a Ctrl-C would leave processes behind, or crash it.
    """
    if threading.current_thread() is not threading.main_thread():  # Python takes no signals there
        yield
        return
    before, asked = signal.getsignal(signal.SIGINT), False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        logger.warning("stopping as soon as Ray is ready for it; press Ctrl-C again to stop at once")

    if callable(before):  # else it is ignored, or ends the process
        signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        if callable(before):
            signal.signal(signal.SIGINT, before)
        if asked:
            signal.raise_signal(signal.SIGINT)
