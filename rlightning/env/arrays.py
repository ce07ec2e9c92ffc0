"""The arrays of a space, and the conversion of values of user code to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np

from rlightning.errors import ShapeError, UnsupportedSpace
from rlightning.types import Tree
from rlightning.types.tree import to_host, tree_map


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of a space.

    Attributes:
        path: Its path in a dict or tuple space, such as ``.camera[0]``; empty for a single array.
        shape: Its shape.
        dtype: The dtype in the env.
        handed_out: The dtype in which observations leave the worker: float32 for float64, else the same.
        choices: The first and the last choice, for each element or for all, of a space of choices; else None.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    handed_out: np.dtype[Any]
    choices: tuple[Any, Any] | None = field(default=None, compare=False)


def space_leaves(space: Any, path: str = "") -> Tree:
    """Describe the arrays of a space: a ``Leaf``, or a dict or tuple of them in the space's structure.

    Raises:
        UnsupportedSpace: If it is not a space of Gymnasium, or a part of it has no fixed shape (Text, Graph, Sequence,
            OneOf).
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: space_leaves(part, f"{path}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(space_leaves(part, f"{path}[{i}]") for i, part in enumerate(space.spaces))
    if not isinstance(space, gym.Space):
        where = f" at {path}" if path else ""
        kind = f"{type(space).__module__}.{type(space).__qualname__}"
        raise UnsupportedSpace(f"what stands for a space{where} is a {kind} and no gymnasium.Space: {space}")
    if space.shape is None or space.dtype is None or np.dtype(space.dtype).kind not in "biuf":
        where = f" at {path}" if path else ""
        is_text = space.dtype is not None and np.dtype(space.dtype).kind == "U"
        hint = "; plain envs of Gymnasium (vectorization: sync) show token ids instead; other envs take TokenIds"
        raise UnsupportedSpace(
            f"a {type(space).__name__} space{where} is no array of fixed shape: {space}{hint if is_text else ''}"
        )
    dtype = np.dtype(space.dtype)
    handed_out = np.dtype(np.float32) if dtype == np.float64 else dtype
    return Leaf(path, tuple(space.shape), dtype, handed_out, _choices(space, dtype))


def _choices(space: gym.Space[Any], dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    if isinstance(space, gym.spaces.Discrete):
        return dtype.type(space.start), dtype.type(space.start + space.n - 1)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    if isinstance(space, gym.spaces.MultiBinary):
        return dtype.type(0), dtype.type(1)
    return None


def row_leaves(space: gym.Space[Any], num_envs: int) -> Tree:
    """Describe the arrays of N rows of a space: their shapes are [N, ...]."""
    return tree_map(lambda leaf: replace(leaf, shape=(num_envs, *leaf.shape)), space_leaves(space))


def checked(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> np.ndarray[Any, Any]:
    """View a value of user code as an array of ``shape`` whose values fit ``dtype``, without a copy or cast.

    Args:
        value: An array, a tensor on any device, or numbers.
        shape: The required shape.
        dtype: The dtype of a later cast. It may lose digits, but neither fractions nor the size of whole numbers.
        what: Its name, for the message.

    Raises:
        ShapeError: If the shape or the kind of numbers differs.
    """
    try:
        array = np.asarray(to_host(value))
    except (TypeError, ValueError) as error:
        raise ShapeError(f"{what} is no array but a {type(value).__name__}: {error}") from error
    if array.shape != shape:
        raise ShapeError(f"{what} has shape {list(array.shape)}, {list(shape)} expected")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ShapeError(f"{what} has dtype {array.dtype}, which does not fit {dtype}")
    if dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype, "safe"):
        bounds, lowest, highest = np.iinfo(dtype), int(array.min()), int(array.max())
        if lowest < bounds.min or highest > bounds.max:
            raise ShapeError(f"{what} has numbers from {lowest} to {highest}, which do not fit {dtype}")
    return array


def all_finite(array: np.ndarray[Any, Any]) -> bool:
    """Whether no number is NaN or infinite; arrays of whole numbers pass."""
    return array.dtype.kind != "f" or 0 not in np.isfinite(array).tobytes()


def no_choice(array: np.ndarray[Any, Any], leaf: Leaf) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    """Return which elements are not among the leaf's choices; None if all are.

    >>> no_choice(np.array([0, 2, -1]), space_leaves(gym.spaces.Discrete(2)))
    array([False,  True,  True])
    """
    if leaf.choices is None:
        return None
    first, last = leaf.choices
    wrong = (array < first) | (array > last)
    return wrong if any_true(wrong) else None


def any_true(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    """Whether any flag is set."""
    # For a few rows, searching the bytes takes a tenth of the time of mask.any().
    return 1 in mask.tobytes()


def empty_rows(leaves: Tree, num_envs: int) -> Tree:
    """Allocate arrays [N, ...] of zeros in the structure of ``leaves``, in the env's dtypes."""
    return tree_map(lambda leaf: np.zeros((num_envs, *leaf.shape), leaf.dtype), leaves)


def write_row(rows: Tree, row: int, value: Tree, leaves: Tree) -> None:
    """Write the observation of one sub-env into row ``row`` of arrays [N, ...].

    Raises:
        ShapeError: If the observation is not of the space that ``leaves`` describes; names the sub-env.
    """
    if type(leaves) is Leaf:
        if type(value) is not np.ndarray or value.dtype is not leaves.dtype or value.shape != leaves.shape:
            value = checked(value, leaves.shape, leaves.dtype, f"observation{leaves.path} of sub-env {row}")
        rows[row] = value
        return
    for key, part in leaves.items() if isinstance(leaves, dict) else enumerate(leaves):
        write_row(rows[key], row, _part(value, key, f"observation of sub-env {row}"), part)


def map_parts(function: Callable[[Tree, Tree], Tree], value: Tree, leaves: Tree, what: str) -> Tree:
    """Apply ``function`` to each part of a value of user code for a dict or tuple space, and to that part's leaves.

    Raises:
        ShapeError: If a part is missing.
    """
    if isinstance(leaves, dict):
        return {key: function(_part(value, key, what), part) for key, part in leaves.items()}
    return tuple(function(_part(value, i, what), part) for i, part in enumerate(leaves))


def _part(value: Tree, key: Any, what: str) -> Tree:
    try:
        return value[key]
    except (IndexError, KeyError, TypeError) as error:
        raise ShapeError(f"{what} has no part {key!r}, which its space has; it is a {type(value).__name__}") from error
