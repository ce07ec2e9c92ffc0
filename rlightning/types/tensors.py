"""Nested arrays as tensors of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rlightning.types.tree import Tree, tree_map


def owned_tensor(leaf: Any, device: str = "cpu") -> torch.Tensor:
    """Copy an array or tensor into a tensor on ``device`` that shares no memory."""
    if type(leaf) is np.ndarray:
        tensor = torch.from_numpy(leaf.copy())
        return tensor if device == "cpu" else tensor.to(device)
    return leaf.to(device, copy=True) if isinstance(leaf, torch.Tensor) else torch.tensor(leaf, device=device)


def concat_rows(trees: Sequence[Tree], device: str = "cpu") -> Tree:
    """Join trees of arrays along axis 0 into owned tensors on ``device``.

    Raises:
        ValueError, TypeError, KeyError, RuntimeError: If they differ in anything but the number of rows. Two dtypes
            would be promoted to a third one otherwise.
    """
    first = trees[0]
    if len(trees) == 1:
        if type(first) is np.ndarray:
            return owned_tensor(first, device)
        return tree_map(lambda leaf: owned_tensor(leaf, device), first)

    def join(*leaves: Any) -> torch.Tensor:
        if isinstance(leaves[0], torch.Tensor):
            if len({leaf.dtype for leaf in leaves}) > 1:
                raise TypeError("tensors of different dtypes")
            return torch.cat(leaves).to(device)
        return torch.from_numpy(np.concatenate(leaves, dtype=leaves[0].dtype, casting="no")).to(device)

    return tree_map(join, first, *trees[1:])
