"""Memory in which many small tensors live side by side, so that thousands of them are copied as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from rlightning.weights.layout import Layout, NamedTensors

_MANY = 100
"""Tensors below which their number does not matter."""
_SMALL = 32_768
"""Mean bytes of a tensor above which copying the bytes takes longer than anything that is done per tensor."""

_WHERE: tuple[Callable[[torch.Tensor], Any], ...] = torch.Tensor.data_ptr, torch.Tensor.stride, torch.Tensor.numel
"""What tells a tensor from another one in the same memory."""


class Home:
    """The tensors of a layout, at their places in one run of bytes in host memory.

    To copy or to exchange a tensor takes some microseconds however small it is, so that thousands of them take longer
    than the bytes of a large model. Those that live here are the same objects as before and each has a storage of its
    own, so that whoever pickles one gets its bytes and no others; they are copied all at once.

    Attributes:
        layout: Where they lie.
        flat: The bytes, [num_bytes] uint8. What is written here is in force at once.
    """

    def __init__(self, tensors: NamedTensors, layout: Layout) -> None:
        """Move tensors, which must be free to move, into memory of their own."""
        # Memory of torch begins at a cache line, and so do all tensors: kernels may give other digits elsewhere.
        self.layout, self.flat = layout, torch.zeros(layout.num_bytes, dtype=torch.uint8)
        memory = self.flat.numpy()
        self._named, self._tensors = tensors, _listed(tensors)
        self._ids = list(map(id, self._tensors))
        with torch.no_grad():
            for spec, tensor in zip(layout.specs, self._tensors, strict=True):
                if spec.num_bytes:
                    place = torch.from_numpy(memory[spec.start : spec.start + spec.num_bytes])
                    tensor.data = place.view(tensor.dtype).view(tensor.shape).copy_(tensor)
        self._places = [list(map(where, self._tensors)) for where in _WHERE]

    @classmethod
    def of(cls, tensors: NamedTensors, layout: Layout) -> Home | None:
        """Move tensors into a home; None, with nothing changed, where that does not pay or somebody would notice."""
        return cls(tensors, layout) if cls.pays(layout) and all(map(_is_free, _listed(tensors))) else None

    @staticmethod
    def pays(layout: Layout) -> bool:
        """Tell whether tensors are so many and so small that they are better copied as one."""
        return len(layout.specs) >= _MANY and layout.num_bytes < _SMALL * len(layout.specs)

    def holds(self, tensors: NamedTensors) -> bool:
        """Tell whether it is these tensors, by these names, that live here, and whether they still do."""
        if tensors is not self._named:
            if list(map(id, _listed(tensors))) != self._ids or not self.layout.has_names(tensors):
                return False
            self._named = tensors
        return all(
            list(map(where, self._tensors)) == places for where, places in zip(_WHERE, self._places, strict=True)
        )

    def read(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Copy the bytes."""
        return self.flat.numpy().copy()


def _listed(tensors: NamedTensors) -> list[torch.Tensor]:
    return [tensor for named in tensors.values() for tensor in named.values()]


def _is_free(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is an ordinary one in host memory that no other tensor, array or process has a hold on."""
    storage = tensor.untyped_storage()
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not tensor.is_inference()
        and not storage.is_shared()
        and is_alone(tensor)
    )


def is_alone(tensor: torch.Tensor) -> bool:
    """Tell whether no other tensor and no array has a hold on the memory of a tensor."""
    return uses_of(tensor) == _ALONE


def uses_of(tensor: torch.Tensor) -> int:
    """Count the tensors and arrays that have a hold on the memory of a tensor, and the callers of this function."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


_ONE = torch.zeros(1)
_ALONE = uses_of(_ONE)
"""What the count is where a single tensor has a storage, and somebody asks."""
