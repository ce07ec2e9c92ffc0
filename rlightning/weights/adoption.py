"""The memory of a version buffer that a policy acts with, by an exchange of pointers."""

from __future__ import annotations

import gc

import torch

from rlightning.errors import WeightSyncError
from rlightning.weights.layout import NamedTensors, each, point_all
from rlightning.weights.version_buffer import Newest, VersionBuffer


class Adoption:
    """The use that the tensors of a policy make of the memory of a buffer's newest version.

    An author may hold a view of that memory, such as an array, which has to show what acts. The uses of the memory are
    counted, so that such a view is noticed at the next update.

    Attributes:
        stamp: Stamp of the version whose memory is used; None where the tensors have memory of their own.
    """

    def __init__(self, buffer: VersionBuffer) -> None:
        self._buffer = buffer
        self.stamp: int | None = None
        self._copy, self._used = 0, 0  # the copy of the buffer that is used, and the number of its uses
        self._windows: dict[int, tuple[torch.Tensor, NamedTensors]] = {}  # memory and tensors of the copies

    @property
    def is_adopted(self) -> bool:
        """Whether the tensors use the memory of the buffer."""
        return self.stamp is not None

    def views(self, newest: Newest) -> NamedTensors:
        """Return the tensors of a version."""
        return self._window(newest)[1]

    def adopt(self, newest: Newest, tensors: NamedTensors, name: str) -> bool:
        """Point tensors at the memory of a version; return whether they may use it, or need the values copied in.

        Args:
            newest: The version.
            tensors: The tensors that act, of the buffer's layout.
            name: Name of the policy, for messages.

        Raises:
            WeightSyncError: If an author holds a view of memory that other processes act with, too.
        """
        if self._is_viewed():
            self._give_way(name)
        if not self.is_adopted and not all(_uses(tensor) == _ALONE for _, _, tensor in each(tensors)):
            return False  # an author looks at them by an array, or by a view, which has to see the new values
        flat, views = self._window(newest)
        point_all(tensors, views)
        self.stamp, self._copy, self._used = newest.stamp, newest.copy, _uses(flat)
        return True

    def end(self, tensors: NamedTensors) -> None:
        """Copy the tensors out of the memory of the buffer; what is tied stays tied."""
        if self._is_viewed() and not self._buffer.is_mapped:
            self._detach()
            return
        held = [tensor for _, _, tensor in each(tensors)]
        places = [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in held]
        owned = {place: tensor.data.clone() for place, tensor in zip(places, held, strict=True)}
        for place, tensor in zip(places, held, strict=True):
            tensor.data = owned[place]
        self.stamp = None

    def _window(self, newest: Newest) -> tuple[torch.Tensor, NamedTensors]:
        window = self._windows.get(newest.copy)
        if window is None:
            # Other policies of this process may act with mapped memory: with a storage of its own, uses are counted.
            flat = torch.from_numpy(newest.flat.numpy()) if self._buffer.is_mapped else newest.flat
            window = self._windows[newest.copy] = flat, self._buffer.layout.views(flat)
        return window

    def _is_viewed(self) -> bool:
        """Whether an author has taken a view of the memory in use."""
        return self.is_adopted and _uses(self._windows[self._copy][0]) > self._used

    def _give_way(self, name: str) -> None:
        if not self._buffer.is_mapped:
            self._detach()
            return
        gc.collect()  # a view that is no longer held is no fault
        if self._is_viewed():
            raise WeightSyncError(
                f"{name} holds a view of its weights that it took at a request, and that would go on showing old ones: "
                f"take it in construct_network, or set policy.weight_buffer.buffer_strategy to Double or None"
            )

    def _detach(self) -> None:
        """Leave the memory in use to the tensors and views that use it."""
        self._buffer.detach(self._copy)
        del self._windows[self._copy]
        self.stamp = None


def _uses(tensor: torch.Tensor) -> int:
    """Count the tensors and arrays that hold the memory of a tensor, and the callers of this function."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


_ALONE = _uses(torch.zeros(1))
"""The count of the memory of a single tensor."""
