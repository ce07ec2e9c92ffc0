"""Maps over nested arrays: an observation may be one array or a dict or tuple of them.

Nothing here imports torch, so that env workers start without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Tree = Any
"""A nested structure of dicts, lists and tuples with arrays or tensors as leaves; rows are axis 0."""
_BRANCHES = (dict, list, tuple)


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply ``function`` to each leaf (and to the leaves at the same place in ``others``).

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    if type(tree) is np.ndarray or not isinstance(tree, _BRANCHES):
        # First, since most trees are one array.
        return function(tree, *others)
    if isinstance(tree, dict):
        if any(len(other) != len(tree) for other in others):
            raise ValueError(f"one tree has the keys {list(tree)}, another {[list(other) for other in others]}")
        return {key: tree_map(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        mapped = [tree_map(function, *items) for items in zip(tree, *others, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    return [tree_map(function, *items) for items in zip(tree, *others, strict=True)]


def tree_leaves(tree: Tree) -> list[Any]:
    """List the leaves, depth first, dicts in the order of their keys.

    >>> tree_leaves({"x": 1, "y": (2, 3)})
    [1, 2, 3]
    """
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf is a tensor of torch; without torch imported there are none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


def to_host(leaf: Any) -> Any:
    """Return the array that shares a tensor's memory (a copy if the tensor is on a device); other leaves pass."""
    return leaf.numpy(force=True) if is_tensor(leaf) else leaf


def to_numpy(tree: Tree) -> Tree:
    """Replace every tensor of a tree by a numpy array."""
    return tree_map(to_host, tree)


def split_rows(tree: Tree, counts: Sequence[int]) -> list[Tree]:
    """Cut a tree along axis 0 into consecutive pieces of ``counts`` rows; the pieces are views.

    >>> split_rows({"x": np.arange(3)}, [1, 2])
    [{'x': array([0])}, {'x': array([1, 2])}]
    """
    pieces, start = [], 0
    for count in counts:
        stop = start + count
        pieces.append(tree_map(lambda leaf, a=start, b=stop: leaf[a:b], tree))
        start = stop
    return pieces
