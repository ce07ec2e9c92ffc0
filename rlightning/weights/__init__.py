"""The way of weights from learners to eval policies."""

from rlightning.weights.comparison import Mismatch, digests
from rlightning.weights.layout import Bucket, Layout, NamedTensors, flatten_names, pack
from rlightning.weights.version_buffer import VersionBuffer

__all__ = ["Bucket", "Layout", "Mismatch", "NamedTensors", "VersionBuffer", "digests", "flatten_names", "pack"]
