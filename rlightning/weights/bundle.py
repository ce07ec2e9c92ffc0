"""The unit that is synchronised: all tensors that act, buffers included, with the version that they belong to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import xxhash

from rlightning.errors import WeightSyncError
from rlightning.weights.layout import Layout, NamedTensors, as_bytes, copy_all

_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A versioned copy of all that acts, as one flat array of bytes.

    One large array travels faster than many small ones, and numpy arrays cross processes without being pickled.

    Attributes:
        version: Training steps that made it; 0 is the initial state.
        layout: Which tensors lie where.
        flat: The bytes, [layout.num_bytes].
    """

    version: int
    layout: Layout
    flat: np.ndarray[Any, np.dtype[np.uint8]]

    @property
    def num_bytes(self) -> int:
        """Size of the payload in bytes."""
        return self.flat.nbytes

    def views(self) -> NamedTensors:
        """Give the tensors without a copy, to be read while the bundle is held."""
        return self.layout.views(as_bytes(self.flat))

    def unpack(self) -> NamedTensors:
        """Give the tensors to be written too: views where the memory may be written, else a copy."""
        owned = self.flat if self.flat.flags.writeable else self.flat.copy()
        return self.layout.views(torch.from_numpy(owned))


@dataclass(frozen=True, slots=True)
class BundlePart:
    """Some of the bytes of a bundle.

    Attributes:
        version: Version of the bundle.
        key: Key of its layout.
        index: Which part it is.
        flat: The bytes.
    """

    version: int
    key: str
    index: int
    flat: np.ndarray[Any, np.dtype[np.uint8]]

    @property
    def num_bytes(self) -> int:
        """Size of the payload in bytes."""
        return self.flat.nbytes


def split(bundle: Bundle, count: int) -> list[BundlePart]:
    """Cut a bundle into parts of nearly equal size; they are views."""
    ranges = bundle.layout.parts(count)
    return [
        BundlePart(bundle.version, bundle.layout.key, index, bundle.flat[start:stop])
        for index, (start, stop) in enumerate(ranges)
    ]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A tensor of an eval policy that is not the learner's.

    Attributes:
        policy: Index of the eval policy.
        name: ``module.tensor``, or ``version``.
        expected, actual: What the learner has and what the eval policy has; None where it is missing.
    """

    policy: int
    name: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"eval[{self.policy}] {self.name}: {self.actual}, the learner has {self.expected}"


def differences(
    policy: int, expected: Mapping[str, Any], found: Mapping[str, Any], rtol: float = 0.0
) -> list[Mismatch]:
    """List the tensors that differ.

    Args:
        policy: Index of the eval policy that something was found at.
        expected: Norm or digest of each of the learner's tensors, by name.
        found: Those of the eval policy.
        rtol: Largest relative difference of norms; 0 wants equal values.

    >>> [str(one) for one in differences(1, {"w": 2.0, "b": 1.0}, {"w": 2.1}, rtol=0.1)]
    ['eval[1] b: None, the learner has 1.0']
    """
    mismatches = []
    for name in {**expected, **found}:
        wanted, got = expected.get(name), found.get(name)
        if wanted is None or got is None:
            same = False
        elif rtol > 0 and math.isfinite(wanted):
            same = abs(wanted - got) / max(abs(wanted), 1e-8) <= rtol
        else:
            same = wanted == got or (wanted != wanted and got != got)  # NaN is the norm of what has one
        if not same:
            mismatches.append(Mismatch(policy, name, wanted, got))
    return mismatches


def pack(tensors: Mapping[str, Mapping[str, torch.Tensor]], version: int, layout: Layout | None = None) -> Bundle:
    """Copy named tensors into a bundle; later training does not change it.

    Args:
        tensors: What acts.
        version: Its version.
        layout: Its layout, where it is known; it must fit.
    """
    layout = layout if layout is not None else Layout.of(tensors)
    flat = np.zeros(layout.num_bytes, np.uint8)
    copy_all(layout.views(torch.from_numpy(flat)), tensors)
    return Bundle(version, layout, flat)


@lru_cache(maxsize=100_000)
def strip_wrappers(name: str) -> str:
    """Remove what DDP, ``torch.compile`` and the like put into the names of parameters.

    >>> strip_wrappers("module._orig_mod.0.weight")
    '0.weight'
    """
    for prefix in _WRAPPERS:
        name = name.replace(prefix, "") if name.startswith(prefix) else name.replace(f".{prefix}", ".")
    return name


def flatten_names(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Join the two names of each tensor by a dot."""
    return {f"{module}.{name}": tensor for module, named in tensors.items() for name, tensor in named.items()}


def check_same_layout(
    expected: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], receiver: str, version: int | None = None
) -> None:
    """Compare names, shapes, dtypes and ties before anything is changed.

    Raises:
        WeightSyncError: Lists what is missing, unexpected, of another shape or dtype, or tied here and different there.
    """
    faults = [f"missing {name}" for name in expected if name not in given]
    faults += [f"unexpected {name}" for name in given if name not in expected]
    for name, tensor in expected.items():
        other = given.get(name)
        if other is not None and (other.shape != tensor.shape or other.dtype != tensor.dtype):
            faults.append(
                f"{name} is {tuple(other.shape)} {other.dtype}, expected {tuple(tensor.shape)} {tensor.dtype}"
            )
    if not faults:
        faults += _untied(expected, given)
    if faults:
        more = f" and {len(faults) - 10} more" if len(faults) > 10 else ""
        of_version = "" if version is None else f" of version {version}"
        raise WeightSyncError(f"weights{of_version} do not fit {receiver}: {'; '.join(faults[:10])}{more}")


def _untied(expected: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> list[str]:
    """List the tensors that share all their memory with another one and are given another value than that."""
    first: dict[Any, str] = {}
    faults = []
    for name, tensor in expected.items():
        other = first.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name) if tensor.numel() else name
        if other != name and len(set(digests({key: given[key] for key in (name, other)}).values())) > 1:
            faults.append(f"{other} and {name} are one tensor, and two values are given")
    return faults


def norms(tensors: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Give the L2 norm of each tensor."""

    def norm(tensor: torch.Tensor) -> float:
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        return float(torch.linalg.vector_norm(tensor.detach().to(wide)))

    return {name: norm(tensor) for name, tensor in tensors.items()}


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Hash each tensor: its bits, its dtype and its shape.

    XXH3 with 128 bits takes less time than a copy. It finds accidents, not forgeries.
    """
    result = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest = xxhash.xxh3_128(flat.numpy().data)
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        result[name] = digest.hexdigest()
    return result
