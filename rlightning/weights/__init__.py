"""How weights get from those who learn to those who act."""

from rlightning.weights.bundle import Bundle, BundlePart, Mismatch, digests, flatten_names, pack
from rlightning.weights.layout import Layout, NamedTensors
from rlightning.weights.version_buffer import VersionBuffer

__all__ = [
    "Bundle",
    "BundlePart",
    "Layout",
    "Mismatch",
    "NamedTensors",
    "VersionBuffer",
    "digests",
    "flatten_names",
    "pack",
]
