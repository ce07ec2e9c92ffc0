"""Spaces of Gymnasium as plain data, which a checkpoint stores, and the description of an env with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlightning.errors import UnsupportedSpace
from rlightning.types.env import EnvMeta
from rlightning.types.tokens import TokenIds


def space_to_state(space: gym.Space[Any]) -> dict[str, Any]:
    """Describe a space by numbers, texts and arrays, so that ``space_from_state`` returns an equal one.

    Raises:
        UnsupportedSpace: If it is of a class of its own, or of one without arrays of fixed shape.

    >>> space_to_state(gym.spaces.Discrete(2))
    {'kind': 'Discrete', 'n': 2, 'start': 0}
    """
    kind = type(space).__name__
    if isinstance(space, gym.spaces.Dict):
        # As a list, since the order of the keys is a part of the space.
        return {"kind": kind, "parts": [(key, space_to_state(part)) for key, part in space.spaces.items()]}
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": kind, "parts": [space_to_state(part) for part in space.spaces]}
    if type(space) not in _WRITERS:
        raise UnsupportedSpace(f"{space}: a {kind} cannot be stored")
    return {"kind": kind, **_WRITERS[type(space)](space)}


def space_from_state(state: Mapping[str, Any]) -> gym.Space[Any]:
    """Return the space that ``space_to_state`` described.

    Raises:
        UnsupportedSpace: If the description is of no space that this version knows.

    >>> space_from_state({"kind": "Discrete", "n": 2, "start": 0})
    Discrete(2)
    """
    kind = state["kind"]
    if kind == "Dict":
        return gym.spaces.Dict([(key, space_from_state(part)) for key, part in state["parts"]])
    if kind == "Tuple":
        return gym.spaces.Tuple([space_from_state(part) for part in state["parts"]])
    if kind not in _CLASSES:
        raise UnsupportedSpace(f"a stored space of class {kind!r} is not one that this version knows")
    arguments = {name: value for name, value in state.items() if name != "kind"}
    if "dtype" in arguments:
        arguments["dtype"] = np.dtype(arguments["dtype"])
    return _CLASSES[kind](**arguments)


def meta_to_state(meta: EnvMeta) -> dict[str, Any] | None:
    """Describe an env for a checkpoint; None if one of its spaces cannot be stored."""
    try:
        spaces = {name: space_to_state(getattr(meta, name)) for name in ("observation_space", "action_space")}
    except UnsupportedSpace:
        return None
    return {
        "name": meta.name,
        **spaces,
        "num_envs": meta.num_envs,
        "max_episode_steps": meta.max_episode_steps,
        "rate_hz": meta.rate_hz,
        "action_names": list(meta.action_names),
    }


def meta_from_state(state: Mapping[str, Any]) -> EnvMeta:
    """Return the description that ``meta_to_state`` stored."""
    spaces = {name: space_from_state(state[name]) for name in ("observation_space", "action_space")}
    return EnvMeta(**{**state, **spaces, "action_names": tuple(state["action_names"])})


def _write_box(space: gym.spaces.Box) -> dict[str, Any]:
    bounds = {name: _as_scalar(getattr(space, name)) for name in ("low", "high")}
    return {**bounds, "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}


def _as_scalar(bound: np.ndarray[Any, Any]) -> Any:
    """Replace a bound that is the same everywhere by its value; those of images would be as large as an image."""
    first = bound.flat[0] if bound.size else bound.dtype.type(0)
    return first if np.all(bound == first) else bound


_WRITERS: dict[type, Callable[[Any], dict[str, Any]]] = {
    gym.spaces.Box: _write_box,
    gym.spaces.Discrete: lambda space: {"n": int(space.n), "start": int(space.start)},
    gym.spaces.MultiDiscrete: lambda space: {
        "nvec": space.nvec,
        "start": space.start,
        "dtype": np.dtype(space.dtype).name,
    },
    gym.spaces.MultiBinary: lambda space: {"n": list(space.shape)},
    TokenIds: lambda space: {"length": space.length, "vocabulary": space.vocabulary},
}
_CLASSES: dict[str, Callable[..., gym.Space[Any]]] = {kind.__name__: kind for kind in _WRITERS}
