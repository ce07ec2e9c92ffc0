"""Comparison of states bit for bit: nested dicts and lists of tensors, arrays and numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

_SHOWN = 12
"""Characters of a digest that are shown to people."""


def leaves(state: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List the leaves of a state with their paths; an empty dict or list is a leaf."""
    items: list[tuple[Any, Any]] = []
    if isinstance(state, Mapping):
        items = list(state.items())
    elif isinstance(state, list | tuple):
        items = list(enumerate(state))
    for key, value in items:
        yield from leaves(value, f"{path}.{key}" if path else str(key))
    if not items:
        yield path, state


def digest(leaf: Any) -> str:
    """Compute a digest of one leaf that depends on every bit, on dtype and on shape."""
    if isinstance(leaf, torch.Tensor):
        leaf = leaf.detach().cpu().contiguous()
        content = leaf.reshape(-1).view(torch.uint8).numpy().tobytes()
        head = f"tensor {leaf.dtype} {tuple(leaf.shape)}"
    elif isinstance(leaf, np.ndarray):
        content, head = np.ascontiguousarray(leaf).tobytes(), f"array {leaf.dtype} {leaf.shape}"
    elif isinstance(leaf, float):
        content, head = np.float64(leaf).tobytes(), "float"
    else:
        content, head = repr(leaf).encode(), type(leaf).__name__
    return hashlib.sha256(head.encode() + b"\0" + content).hexdigest()


def tree_digest(state: Any) -> str:
    """Compute a digest of a whole state, whatever the order of its dicts."""
    total = hashlib.sha256()
    for path, leaf in sorted(leaves(state), key=lambda item: item[0]):
        total.update(f"{path}\0{digest(leaf)}\n".encode())
    return total.hexdigest()


def short(hexdigest: str) -> str:
    """Shorten a digest for people."""
    return hexdigest[:_SHOWN]


def differences(left: Any, right: Any) -> list[str]:
    """List the paths of the leaves that are not equal bit for bit, or are on one side only."""
    left_digests = {path: digest(leaf) for path, leaf in leaves(left)}
    right_digests = {path: digest(leaf) for path, leaf in leaves(right)}
    paths = {**left_digests, **right_digests}
    return [path for path in paths if left_digests.get(path) != right_digests.get(path)]
