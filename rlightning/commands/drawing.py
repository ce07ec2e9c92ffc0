"""How MuJoCo draws on a machine without a screen; it is chosen before MuJoCo is imported."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys

from rlightning.config import Config
from rlightning.registry import lookup

_LONGEST_PROBE_S = 20.0
_GL_BACKENDS = {"egl": "EGL", "osmesa": "OSMesa"}
"""Values of MUJOCO_GL that need no screen, the quicker one first, and the library of each."""


def prepare_to_draw(config: Config) -> None:
    """Choose how MuJoCo draws without a screen, before it is imported, if a callback draws."""
    if any(lookup("callback", entry.name).draws for entry in config.callbacks):
        choose_gl_backend()


def choose_gl_backend() -> None:
    """Set MUJOCO_GL where it is unset and there is no screen, so that MuJoCo draws without one.

    A backend is tried in a process of its own, since the choice cannot be changed in this one afterwards.
    """
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not sys.platform.startswith("linux") or has_screen or "MUJOCO_GL" in os.environ:
        return
    for backend, library in _GL_BACKENDS.items():
        if ctypes.util.find_library(library) and _can_draw(backend):
            os.environ["MUJOCO_GL"] = backend
            return


def _can_draw(backend: str) -> bool:
    program = "import mujoco; mujoco.GLContext(8, 8).make_current()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "MUJOCO_GL": backend},
            capture_output=True,
            timeout=_LONGEST_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
