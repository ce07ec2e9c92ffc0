"""Which files of the package a call enters: what has to be read to follow it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from tests.architecture.source import PACKAGE


def files_entered(call: Callable[[], Any]) -> list[str]:
    """Run a call and list the package's files in which a function ran, in this thread and in those that it starts.

    Args:
        call: Run once.

    Returns:
        Paths below the package, in the order in which they were entered first.
    """
    prefix, entered = f"{PACKAGE}/", {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(prefix):
            entered.setdefault(file.removeprefix(prefix))

    before = sys.getprofile(), threading.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before[0])
        threading.setprofile(before[1])
    return list(entered)
