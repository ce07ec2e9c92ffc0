"""What MuJoCo needs beyond Gymnasium: its state, quiet loading and quick pictures. It is imported only to draw."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rlightning.env.state import NotStorable, describe_class, keep_package
from rlightning.errors import CheckpointError

_DATA = "mujoco._structs.MjData"
_SCALARS = (
    "time",
    "flg_energypos",
    "flg_energyvel",
    "flg_rnepost",
    "flg_subtreevel",
    "nbody_awake",
    "nparent_awake",
    "ntree_awake",
    "nv_awake",
)


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


def prepare_to_draw(env: Any) -> None:
    """Let the camera follow the robot, and leave out shadows, reflections and smoothed edges.

    Without a GPU those take ten times as long as all the rest of a picture.
    """
    renderer = getattr(env, "mujoco_renderer", None)
    if renderer is None:
        return
    import mujoco

    # Read when the viewer is made.
    env.model.vis.quality.offsamples = 0
    viewer = renderer._get_viewer("rgb_array")
    for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
        viewer.scn.flags[flag] = 0
    camera = mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    if renderer.camera_id in (None, -1) and camera >= 0:
        renderer.camera_id = camera


def model_digest(env: Any) -> str:
    """Hash all numbers of an env's model; empty where it has none. Domain randomisation changes them."""
    model = getattr(env, "model", None)
    if type(model).__module__.partition(".")[0] != "mujoco":
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for name in _array_names(model):
        digest.update(np.ascontiguousarray(getattr(model, name)).data)
    return digest.hexdigest()


def _array_names(struct: Any) -> list[str]:
    return [name for name in dir(struct) if name[0] != "_" and isinstance(getattr(struct, name), np.ndarray)]


def _capture_data(data: Any) -> dict[str, Any]:
    """Copy all arrays of an MjData that have a fixed size.

    The positions and velocities would not do: what Gymnasium's envs observe (body positions, contact forces) is older
    than they are by one integration step. Arrays in the arena (contacts, constraints) are empty in a fresh MjData;
    the next step computes them anew before it uses them.
    """
    if data.nplugin:
        raise NotStorable("MuJoCo's plugins keep a state of their own")
    fresh = type(data)(data.model)
    names = [name for name in _array_names(fresh) if getattr(fresh, name).size]
    arrays = {name: getattr(data, name).copy() for name in names}
    return {"arrays": arrays, "scalars": {name: getattr(data, name) for name in _SCALARS if hasattr(data, name)}}


def _restore_data(data: Any, state: dict[str, Any]) -> None:
    for name, value in state["arrays"].items():
        array = getattr(data, name, None)
        if not isinstance(array, np.ndarray) or array.shape != value.shape or array.dtype != value.dtype:
            raise CheckpointError(
                f"MuJoCo's {name} has another shape here: the state is that of another model or version"
            )
        array[...] = value
    for name, value in state["scalars"].items():
        setattr(data, name, value)


keep_package("mujoco")
describe_class(_DATA, _capture_data, _restore_data)
