"""How weights get from those who learn to those who act."""

from rlightning.weights.bundle import Bundle, BundlePart, Mismatch, digests, flatten_names, pack
from rlightning.weights.layout import Layout, NamedTensors
from rlightning.weights.slots import Slots

__all__ = ["Bundle", "BundlePart", "Layout", "Mismatch", "NamedTensors", "Slots", "digests", "flatten_names", "pack"]
