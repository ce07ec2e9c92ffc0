"""How weights get from those who learn to those who act."""

from rlightning.weights.bundle import Bundle, Mismatch, NamedTensors, digests, flatten_names, pack

__all__ = ["Bundle", "Mismatch", "NamedTensors", "digests", "flatten_names", "pack"]
