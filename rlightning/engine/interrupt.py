"""Ctrl-C ends a run at the end of the epoch, where its state is whole; a second one ends it at once."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Interrupt:
    """``with Interrupt() as interrupt:`` turns the first SIGINT or SIGTERM into ``interrupt.requested``.

    Outside of the main thread, where Python takes no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether signals are turned into requests now."""
        return bool(self._before)

    def __enter__(self) -> Interrupt:
        self.requested = False
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        logger.warning("stopping at the end of this epoch, with a checkpoint; press Ctrl-C again to stop at once")
