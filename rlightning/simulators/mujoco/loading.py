"""Model files: where they lie, and loading them without noise. MuJoCo is imported only to load one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Drop MuJoCo's notes that a model file uses a deprecated attribute; other warnings become Python's.

    MuJoCo writes them to the terminal and into a file in the working directory, for each model that it loads.
    """
    mujoco = sys.modules.get("mujoco")
    if mujoco is None:
        yield
        return
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_warn)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


def _warn(message: str) -> None:
    if "deprecated" not in message:
        warnings.warn(f"MuJoCo: {message}", RuntimeWarning, stacklevel=2)
