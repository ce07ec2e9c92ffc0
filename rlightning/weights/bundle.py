"""The unit that is synchronised: all tensors that act, buffers included, with the version that they belong to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlightning.errors import WeightSyncError

NamedTensors = dict[str, dict[str, torch.Tensor]]
"""Module name -> tensor name -> tensor."""

_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where a tensor lies in a bundle, and what it is.

    Attributes:
        module, name: Its two names.
        dtype: Its dtype, without the ``torch.`` in front.
        shape: Its shape.
    """

    module: str
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A versioned copy of all that acts, one flat array of bytes per dtype.

    Few large arrays travel faster than many small ones, and numpy arrays cross processes without being pickled.

    Attributes:
        version: Training steps that made it; 0 is the initial state.
        specs: The tensors in their order.
        flat: dtype -> the tensors of that dtype, one after the other, as bytes.
    """

    version: int
    specs: tuple[TensorSpec, ...]
    flat: dict[str, np.ndarray[Any, np.dtype[np.uint8]]]

    @property
    def num_bytes(self) -> int:
        """Size of the payload in bytes."""
        return sum(array.nbytes for array in self.flat.values())

    def unpack(self) -> NamedTensors:
        """Cut the flat arrays into named tensors; they are views where the memory may be written."""
        tensors: NamedTensors = {}
        rows: dict[str, torch.Tensor] = {}
        for dtype, array in self.flat.items():
            owned = array if array.flags.writeable else array.copy()
            kind = getattr(torch, dtype)
            # An array of no bytes has no strides that torch could take for another dtype.
            rows[dtype] = torch.from_numpy(owned).view(kind) if owned.size else torch.empty(0, dtype=kind)
        places = dict.fromkeys(rows, 0)
        for spec in self.specs:
            start = places[spec.dtype]
            stop = places[spec.dtype] = start + int(np.prod(spec.shape, dtype=np.int64))
            tensors.setdefault(spec.module, {})[spec.name] = rows[spec.dtype][start:stop].view(spec.shape)
        return tensors


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


def pack(tensors: Mapping[str, Mapping[str, torch.Tensor]], version: int) -> Bundle:
    """Copy named tensors into a bundle; later training does not change it."""
    specs: list[TensorSpec] = []
    by_dtype: dict[str, list[torch.Tensor]] = {}
    for module, named in tensors.items():
        for name, tensor in named.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            specs.append(TensorSpec(module, name, dtype, tuple(tensor.shape)))
            by_dtype.setdefault(dtype, []).append(tensor.detach().reshape(-1))
    flat = {dtype: torch.cat(pieces).cpu().view(torch.uint8).numpy() for dtype, pieces in by_dtype.items()}
    return Bundle(version, tuple(specs), flat)


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
    expected: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor], receiver: str, version: int
) -> None:
    """Compare names, shapes and dtypes before anything is changed.

    Raises:
        WeightSyncError: Lists what is missing, unexpected, or of another shape or dtype.
    """
    faults = [f"missing {name}" for name in expected if name not in given]
    faults += [f"unexpected {name}" for name in given if name not in expected]
    for name, tensor in expected.items():
        other = given.get(name)
        if other is not None and (other.shape != tensor.shape or other.dtype != tensor.dtype):
            faults.append(
                f"{name} is {tuple(other.shape)} {other.dtype}, expected {tuple(tensor.shape)} {tensor.dtype}"
            )
    if faults:
        more = f" and {len(faults) - 10} more" if len(faults) > 10 else ""
        raise WeightSyncError(f"weights of version {version} do not fit {receiver}: {'; '.join(faults[:10])}{more}")


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Hash each tensor: its bits, its dtype and its shape."""
    result = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.blake2b(flat.numpy().data, digest_size=16)
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        result[name] = digest.hexdigest()
    return result
