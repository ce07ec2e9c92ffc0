"""Maps over nested arrays: an observation may be one array or a dict or tuple of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Tree = Any
"""A nested structure of dicts, lists and tuples with arrays or tensors as leaves; rows are axis 0."""


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply ``function`` to each leaf (and to the leaves at the same place in ``others``).

    >>> tree_map(lambda a, b: a + b, {"x": 1, "y": (2, 3)}, {"x": 10, "y": (20, 30)})
    {'x': 11, 'y': (22, 33)}
    """
    kind = type(tree)
    if kind is np.ndarray or kind is torch.Tensor:
        # Most trees are one array: this comes first, since it is asked several times per env step.
        return function(tree, *others)
    if isinstance(tree, dict):
        return {key: tree_map(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple):
        mapped = [tree_map(function, *items) for items in zip(tree, *others, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    if isinstance(tree, list):
        return [tree_map(function, *items) for items in zip(tree, *others, strict=True)]
    return function(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """List the leaves, depth first, dicts in the order of their keys.

    >>> tree_leaves({"x": 1, "y": (2, 3)})
    [1, 2, 3]
    """
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves


def to_host(leaf: Any) -> Any:
    """Turn a tensor into the array that shares its memory (after one copy off a device); others pass."""
    return leaf.numpy(force=True) if isinstance(leaf, torch.Tensor) else leaf


def to_numpy(tree: Tree) -> Tree:
    """Turn every tensor of a tree into a numpy array."""
    return tree_map(to_host, tree)


def owned_tensor(leaf: Any, device: str = "cpu") -> torch.Tensor:
    """Copy an array or tensor into a tensor on ``device`` that nobody else holds."""
    if type(leaf) is np.ndarray:
        tensor = torch.from_numpy(leaf.copy())
        return tensor if device == "cpu" else tensor.to(device)
    return leaf.to(device, copy=True) if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, device=device)


def concat_rows(trees: Sequence[Tree], device: str = "cpu") -> Tree:
    """Join trees of arrays along axis 0 into owned tensors on ``device``."""
    first = trees[0]
    if len(trees) == 1:
        if type(first) is np.ndarray:
            return owned_tensor(first, device)
        return tree_map(lambda leaf: owned_tensor(leaf, device), first)

    def join(*leaves: Any) -> torch.Tensor:
        if isinstance(leaves[0], torch.Tensor):
            return torch.cat(leaves).to(device)
        return torch.from_numpy(np.concatenate(leaves)).to(device)

    return tree_map(join, first, *trees[1:])


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
