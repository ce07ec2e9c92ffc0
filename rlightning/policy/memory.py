"""Moves what a policy holds between its device and host memory, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import torch

from rlightning.device import release_memory
from rlightning.errors import ProtocolError

Move = Callable[[torch.UntypedStorage], torch.UntypedStorage]
"""Returns the copy of a storage on the other side, or the storage itself where there is no other side."""


class Part(StrEnum):
    """What moves on its own."""

    MODEL = "model"
    """Parameters and buffers."""
    GRADIENTS = "gradients"
    """What the last backward pass left."""
    OPTIMIZER = "optimizer"
    """The state of all optimizers, and what only they hold."""


class Memory:
    """Knows which parts of a policy are in host memory, and moves them there and back.

    Tensors keep their identity, and those that share memory share it on the other side as well; so optimizers, tied
    weights and all else that refers to a tensor stay valid. Everything may be read and written there: weights that come
    while the model is in host memory are those that it comes back with.

    Moving what is there already does nothing.
    """

    def __init__(self, to_host: Move, to_device: Move) -> None:
        """Set the two moves; a move that fails, as for lack of memory, leaves everything where it is."""
        self._to_host, self._to_device = to_host, to_device
        self.offloaded: frozenset[Part] = frozenset()
        self._at_home: dict[Part, set[int]] = {}  # storages that are in host memory at any rate

    def offload(self, part: Part, tensors: Iterable[torch.Tensor]) -> None:
        """Move a part, given by all its tensors, to host memory."""
        if part not in self.offloaded:
            self._at_home[part] = _move(tensors, self._to_host)
            self.offloaded |= {part}

    def reload(self, part: Part, tensors: Iterable[torch.Tensor]) -> None:
        """Move a part, given by all its tensors, to the device."""
        if part in self.offloaded:
            stay = self._at_home[part]
            _move([one for one in tensors if one.untyped_storage().data_ptr() not in stay], self._to_device)
            self.offloaded -= {part}

    def offload_model(self, tensors: Sequence[torch.Tensor], *, with_gradients: bool) -> None:
        """Move parameters and buffers, all that there are, to host memory."""
        if with_gradients:
            self.offload(Part.GRADIENTS, gradients(tensors))
        self.offload(Part.MODEL, tensors)

    def reload_model(self, tensors: Sequence[torch.Tensor], *, with_gradients: bool) -> None:
        """Move parameters and buffers, all that there are, to the device."""
        self.reload(Part.MODEL, tensors)
        if with_gradients:
            self.reload(Part.GRADIENTS, gradients(tensors))

    def forget(self) -> None:
        """Begin anew, after all parts were built anew on the device."""
        self.offloaded = frozenset()

    def require(self, *parts: Part, to: str) -> None:
        """Make sure that some parts are on the device.

        Raises:
            ProtocolError: If one is not; says which, for what it is needed, and how it comes back.
        """
        missing = [part for part in parts if part in self.offloaded]
        if missing:
            calls = " and ".join(f"reload_{part}" for part in missing)
            raise ProtocolError(f"the {' and the '.join(missing)} must be on the device to {to}: call {calls} first")


def memory_of(device: str) -> Memory:
    """Make the memory of a policy on a device; on the CPU both sides are one, and nothing is copied."""
    if torch.device(device).type == "cpu":
        return Memory(_stay, _stay)

    def to_host(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        if storage.device.type == "cpu":
            return storage
        host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=True)
        return host.copy_(_as_bytes(storage)).untyped_storage()

    def to_device(storage: torch.UntypedStorage) -> torch.UntypedStorage:
        return _as_bytes(storage).to(device, copy=True).untyped_storage()

    return Memory(to_host, to_device)


def gradients(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """List the gradients that there are."""
    return [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]


def optimizer_tensors(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """List what optimizers keep on the device; counts of steps are in host memory but for fused optimizers."""
    tensors = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            counts_there = bool(group.get("fused") or group.get("capturable"))
            for parameter in group["params"]:
                for name, value in optimizer.state.get(parameter, {}).items():
                    if isinstance(value, torch.Tensor) and (name != "step" or counts_there):
                        tensors.append(value)
    return tensors


def _move(tensors: Iterable[torch.Tensor], move: Move) -> set[int]:
    """Move tensors; returns the places of the storages that stayed."""
    held = [(tensor, tensor.untyped_storage()) for tensor in tensors]
    places = [storage.data_ptr() for _, storage in held]
    moved = {place: move(storage) for place, (_, storage) in dict(zip(places, held, strict=True)).items()}
    for place, (tensor, _) in zip(places, held, strict=True):
        target = moved[place]
        there = torch.empty(0, dtype=tensor.dtype, device=target.device)
        there.set_(target, tensor.storage_offset(), tensor.size(), tensor.stride())
        tensor.data = there
    for device in {str(storage.device) for _, storage in held}:
        release_memory(device)
    return {place for place, storage in moved.items() if place and storage.data_ptr() == place}


def _stay(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


def _as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
