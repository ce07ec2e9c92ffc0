"""Loading of model files. MuJoCo is imported on the first load."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlightning.errors import ConfigError, Problem


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Drop MuJoCo's notes on deprecated attributes in a model file, and turn its other warnings into Python warnings.

    By default MuJoCo writes both to the terminal and into a file in the working directory, for each model it loads.
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


def load_model(xml_file: str) -> Any:
    """Load a model.

    Args:
        xml_file: A path, which begins with ``/``, ``.`` or ``~``; or the name of a model file of Gymnasium.

    Raises:
        ConfigError: If there is no such file, or MuJoCo cannot read it.
    """
    import mujoco

    is_path = xml_file.startswith((".", "/", "~")) or Path(xml_file).is_absolute()
    path = Path(xml_file).expanduser() if is_path else _gymnasium_models() / xml_file
    if not path.is_file():
        meant = (
            "" if is_path else "; a path of your own begins with '/', '.' or '~', other names are Gymnasium's models"
        )
        raise ConfigError(Problem("env.env_kwargs.xml_file", f"there is no file {path}{meant}"))
    try:
        with quiet_loading():
            return mujoco.MjModel.from_xml_path(str(path))
    except ValueError as error:
        raise ConfigError(Problem("env.env_kwargs.xml_file", f"MuJoCo cannot read {path}: {error}")) from error


def _gymnasium_models() -> Path:
    # Found without importing Gymnasium's MuJoCo envs, which import the renderer.
    spec = importlib.util.find_spec("gymnasium")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "envs" / "mujoco" / "assets"
