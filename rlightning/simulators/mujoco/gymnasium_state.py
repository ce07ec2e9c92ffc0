"""The state of Gymnasium's MuJoCo envs, which is in MuJoCo's own structures."""

from __future__ import annotations

import hashlib
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


def model_digest(env: Any) -> str:
    """Return a hash of all arrays of an env's model, which domain randomisation changes; empty without a model."""
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

    Positions and velocities are not enough: Gymnasium's envs observe derived quantities (body positions, contact
    forces) of the integration step before. Arrays in the arena (contacts, constraints) are empty in a new MjData; the
    next step computes them before it uses them.
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
