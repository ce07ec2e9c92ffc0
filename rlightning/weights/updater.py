"""Puts announced weights in force; in a thread of its own, where whoever announces would have to wait."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

_LOOK_S = 5.0


class Updater:
    """Counts announcements and follows them; one update may answer several announcements.

    Args:
        update: Bound method that puts the newest weights in force and does not raise. It is held weakly: the loop ends
            with its object.
    """

    def __init__(self, update: Callable[[], None]) -> None:
        self._update = weakref.WeakMethod(update)
        self._changed = threading.Condition()
        self._announced = 0
        self._answered = 0

    def announce(self, at_once: bool = False) -> None:
        """Say that new weights are there.

        Args:
            at_once: Update in the calling thread, where nobody has to be waited for: that saves two changes of thread.
        """
        with self._changed:
            self._announced += 1
            announced = self._announced
            if not at_once:
                self._changed.notify_all()
        if at_once:
            update = self._update()
            if update is not None:
                update()
            self._answer(announced)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latest announcement is answered; False after ``timeout`` seconds."""
        with self._changed:
            announced = self._announced
            return self._changed.wait_for(lambda: self._answered >= announced, timeout)

    def run(self) -> None:
        """Answer announcements until the object is gone."""
        while True:
            with self._changed:
                # Nobody tells of the object's end, so look for it now and then.
                while not self._changed.wait_for(lambda: self._announced > self._answered, _LOOK_S):
                    if self._update() is None:
                        return
                announced = self._announced
            update = self._update()
            if update is None:
                return
            update()
            del update
            self._answer(announced)

    def _answer(self, announced: int) -> None:
        with self._changed:
            self._answered = max(self._answered, announced)
            self._changed.notify_all()
