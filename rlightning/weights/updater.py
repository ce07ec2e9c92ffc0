"""Puts announced weights in force: in the thread that announces them, or in one of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

_LOOK_S = 5.0


class Updater:
    """Counts announcements and follows them, one at a time; one update may answer several announcements.

    Args:
        update: Bound method that puts the newest weights in force and does not raise. It is held weakly: the loop ends
            with its object.
    """

    def __init__(self, update: Callable[[], None]) -> None:
        self._update = weakref.WeakMethod(update)
        self._changed = threading.Condition()
        self._updating = threading.Lock()
        self._announced = self._asked = self._answered = 0  # announcements; those up to which the thread is asked; done

    def announce(self, at_once: bool = False) -> None:
        """Announce new weights.

        Args:
            at_once: Update in the calling thread, unless the other one is at it: that saves two changes of thread.
        """
        with self._changed:
            self._announced += 1
            if not at_once or not self._updating.acquire(blocking=False):
                self._asked = self._announced
                self._changed.notify_all()
                return
        self._follow()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latest announcement is answered; False after ``timeout`` seconds."""
        with self._changed:
            announced = self._announced
            return self._changed.wait_for(lambda: self._answered >= announced, timeout)

    def run(self) -> None:
        """Answer the announcements that are not answered at once, until the object is gone."""
        while True:
            with self._changed:
                # Nothing announces the end of the object, so that it is looked for now and then.
                while not self._changed.wait_for(lambda: self._asked > self._answered, _LOOK_S):
                    if self._update() is None:
                        return
            self._updating.acquire()
            if not self._follow():
                return

    def _follow(self) -> bool:
        """Answer all announcements, and release the lock; returns whether the object is there."""
        try:
            with self._changed:
                announced = self._announced
                is_answered = self._answered >= announced
            update = self._update()
            if update is not None and not is_answered:
                update()
            with self._changed:
                self._answered = max(self._answered, announced)
                self._changed.notify_all()
            return update is not None
        finally:
            self._updating.release()
