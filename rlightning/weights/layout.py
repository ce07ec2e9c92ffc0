"""The place of each named tensor in one flat run of bytes, and the buckets that the run travels in."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xxhash

from rlightning.errors import WeightSyncError
from rlightning.weights.comparison import digests

NamedTensors = dict[str, dict[str, torch.Tensor]]
"""Module name -> tensor name -> tensor."""
Run = tuple[int, int]
"""Neighbouring bytes of a layout: the first one, and the one after the last."""

ALIGNMENT = 64
"""Bytes that each tensor starts at a multiple of: a cache line, and what vectorised kernels like best."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor and its place.

    Attributes:
        module, name: Its two names.
        dtype: Its dtype, without the ``torch.`` in front.
        shape: Its shape.
        start: Byte that it starts at; tied tensors share it.
        num_bytes: Its size.
    """

    module: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int


_KNOWN: dict[str, Layout] = {}
"""Layouts of this process by their description."""
_TEXTS: dict[str, str] = {}
"""Descriptions by the key of their layout."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of all tensors that act.

    Attributes:
        specs: The tensors in their order.
        num_bytes: Size of the whole, gaps included.
        key: Short name of exactly this layout; two sides that have the same one may exchange bytes.
    """

    specs: tuple[TensorSpec, ...]
    num_bytes: int
    key: str
    _names: list[tuple[str, list[str]]] = field(compare=False, repr=False)
    _dtypes: list[torch.dtype] = field(compare=False, repr=False)
    _strides: list[tuple[int, ...]] = field(compare=False, repr=False)
    _ties: list[tuple[int, int]] = field(compare=False, repr=False, default_factory=list)

    @classmethod
    def of(cls, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Layout:
        """Lay out named tensors; those that share their memory (tied weights) share their place."""
        specs: list[TensorSpec] = []
        places: dict[Any, int] = {}
        stop = 0
        for module, name, tensor in each(tensors):
            where: Any = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            start = places.get(where) if tensor.numel() else None
            if start is None:
                start = places[where] = -(-stop // ALIGNMENT) * ALIGNMENT
                stop = start + tensor.nbytes
            dtype = str(tensor.dtype).removeprefix("torch.")
            specs.append(TensorSpec(module, name, dtype, tuple(tensor.shape), start, tensor.nbytes))
        return cls.from_specs(tuple(specs))

    @classmethod
    def from_specs(cls, specs: tuple[TensorSpec, ...]) -> Layout:
        """Complete a layout whose tensors have their places."""
        stop = max((spec.start + spec.num_bytes for spec in specs), default=0)
        names: dict[str, list[str]] = {}
        for spec in specs:
            names.setdefault(spec.module, []).append(spec.name)
        key = xxhash.xxh3_64_hexdigest(repr(specs).encode())
        dtypes, strides = [getattr(torch, spec.dtype) for spec in specs], [_strides(spec.shape) for spec in specs]
        first: dict[int, int] = {}
        places = [(first.setdefault(spec.start, index), index) for index, spec in enumerate(specs) if spec.num_bytes]
        ties = [pair for pair in places if pair[0] != pair[1]]
        return cls(specs, stop, key, list(names.items()), dtypes, strides, ties)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what ``to_json`` returned; a layout that this process knows already is not read again."""
        layout = _KNOWN.get(text)
        if layout is None:
            specs = tuple(TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in json.loads(text))
            layout = _KNOWN[text] = cls.from_specs(specs)
        return layout

    def to_json(self) -> str:
        """Describe the layout; done once per layout, since it travels with every bundle."""
        text = _TEXTS.get(self.key)
        if text is None:
            text = _TEXTS[self.key] = json.dumps([dataclasses.asdict(spec) for spec in self.specs])
        return text

    @property
    def number(self) -> int:
        """The key as a signed integer of 64 bits, to travel in a tensor."""
        return int(self.key, 16) - 2**63

    def __reduce__(self) -> Any:
        # A plain function: cloudpickle sends methods of classes as code, with all that their globals hold.
        return _from_json, (self.to_json(),)

    def has_names(self, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> bool:
        """Whether tensors still have the names of this layout."""
        return self._names == [(module, list(named)) for module, named in tensors.items() if named]

    def fits(self, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> bool:
        """Whether tensors still have the names, shapes and dtypes of this layout, and are tied as they were."""
        if not self.has_names(tensors):
            return False
        held = [tensor for named in tensors.values() for tensor in named.values()]
        is_kind = [tensor.dtype for tensor in held] == self._dtypes
        if any(held[first].data_ptr() != held[second].data_ptr() for first, second in self._ties):
            return False
        return is_kind and all(tensor.shape == spec.shape for tensor, spec in zip(held, self.specs, strict=True))

    def views(self, flat: torch.Tensor, start: int = 0) -> NamedTensors:
        """Cut bytes, uint8, into the tensors that lie in them; nothing is copied.

        Args:
            flat: All bytes, or a run of them that ends between two tensors.
            start: Byte of the layout that the run starts at.
        """
        stop, is_all = start + len(flat), len(flat) == self.num_bytes
        # The whole as each dtype, and then one call per tensor: with thousands of small ones every call counts.
        kinds = {dtype for spec, dtype in zip(self.specs, self._dtypes, strict=True) if spec.num_bytes}
        whole = {dtype: flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype) for dtype in kinds}
        first = {dtype: view.storage_offset() for dtype, view in whole.items()}
        tensors: NamedTensors = {}
        for spec, dtype, strides in zip(self.specs, self._dtypes, self._strides, strict=True):
            if not is_all and not (start <= spec.start < stop and spec.num_bytes):
                continue
            if spec.num_bytes:
                offset = first[dtype] + (spec.start - start) // dtype.itemsize
                view = torch.as_strided(whole[dtype], spec.shape, strides, offset)
            else:
                view = torch.empty(spec.shape, dtype=dtype, device=flat.device)
            tensors.setdefault(spec.module, {})[spec.name] = view
        return tensors

    def buckets(self, max_bytes: int) -> list[Run]:
        """Cut the bytes between tensors into runs of at most ``max_bytes``; a larger tensor is a run of its own.

        >>> Layout.of({"net": {name: torch.zeros(64, dtype=torch.uint8) for name in "abc"}}).buckets(128)
        [(0, 128), (128, 192)]
        """
        starts = [0]
        if self.num_bytes > max_bytes:
            for spec in self.specs:
                is_full = spec.start + spec.num_bytes - starts[-1] > max_bytes
                if is_full and spec.num_bytes and spec.start > starts[-1]:
                    starts.append(spec.start)
        return list(zip(starts, [*starts[1:], self.num_bytes], strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """A run of the bytes of one version: the whole bundle, or a part of it.

    Large runs travel faster than many small tensors, and cross processes without being pickled.

    Attributes:
        version: Training steps that made it; 0 is the initial state.
        layout: Layout of the whole bundle.
        start: Byte of the bundle that the run starts at.
        flat: The bytes, uint8.
        tensors: The same bytes as tensors, where they are known.
    """

    version: int
    layout: Layout
    start: int
    flat: torch.Tensor
    tensors: NamedTensors | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the payload in bytes."""
        return len(self.flat)

    @property
    def run(self) -> Run:
        """First byte in the bundle, and the one after the last."""
        return self.start, self.start + len(self.flat)

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole bundle."""
        return len(self.flat) == self.layout.num_bytes

    def views(self) -> NamedTensors:
        """Return its tensors without a copy, to be read while the bucket exists."""
        return self.layout.views(self.flat, self.start) if self.tensors is None else self.tensors

    def share(self, index: int, count: int) -> Bucket:
        """Return one of ``count`` shares of nearly equal size."""
        start, stop = even_runs(len(self.flat), count)[index]
        return Bucket(self.version, self.layout, self.start + start, self.flat[start:stop])

    def check_unchanged(self) -> None:
        """Raise a ``WeightSyncError`` if its memory has been written over since; its own memory never is."""

    def __reduce__(self) -> Any:
        return _receive, (self.version, self.layout, self.start, self.flat.numpy())


def _receive(version: int, layout: Layout, start: int, flat: np.ndarray[Any, np.dtype[np.uint8]]) -> Bucket:
    return Bucket(version, layout, start, as_bytes(flat))


def pack(
    tensors: Mapping[str, Mapping[str, torch.Tensor]],
    version: int,
    layout: Layout | None = None,
    run: Run | None = None,
) -> Bucket:
    """Copy named tensors into a bucket; later training does not change it.

    Args:
        tensors: All tensors of the bundle.
        version: Its version.
        layout: Its layout, where it is known; it must fit.
        run: Which bytes; None means all.
    """
    layout = layout if layout is not None else Layout.of(tensors)
    start, stop = run if run is not None else (0, layout.num_bytes)
    # numpy touches no page before it is written, torch does.
    flat = torch.from_numpy(np.zeros(stop - start, np.uint8))
    views = layout.views(flat, start)
    copy_all(views, pick(tensors, views))
    return Bucket(version, layout, start, flat, views)


def pick(tensors: Mapping[str, Mapping[str, torch.Tensor]], names: NamedTensors) -> NamedTensors:
    """Return the tensors that have the names of others, in the order of those."""
    return {module: {name: tensors[module][name] for name in named} for module, named in names.items()}


def even_runs(num_bytes: int, count: int) -> list[Run]:
    """Cut bytes into ``count`` runs of nearly equal size, [start, stop) each.

    >>> even_runs(300, 2)
    [(0, 192), (192, 300)]
    """
    lines = -(-num_bytes // ALIGNMENT)
    stops = [min(num_bytes, ALIGNMENT * (-(-lines * (index + 1) // count))) for index in range(count)]
    return list(zip([0, *stops[:-1]], stops, strict=True))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Count the elements between two neighbours of each axis of a contiguous tensor.

    >>> _strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _from_json(text: str) -> Layout:
    return Layout.from_json(text)


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


def check_key(own: Layout, key: str, holder: str) -> None:
    """Compare the layout of what comes, by its key, with that of a network.

    Raises:
        WeightSyncError: If they differ; names the holder of the network.
    """
    if key != own.key:
        raise WeightSyncError(
            f"the weights are laid out for another network than that of {holder}: do both sides have the same "
            f"configuration, and tie the same weights?"
        )


def each(tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Iterator[tuple[str, str, torch.Tensor]]:
    """List module name, tensor name and tensor of all."""
    for module, named in tensors.items():
        for name, tensor in named.items():
            yield module, name, tensor


def copy_all(
    targets: Mapping[str, Mapping[str, torch.Tensor]], sources: Mapping[str, Mapping[str, torch.Tensor]]
) -> None:
    """Copy the tensors of ``sources`` into those of ``targets``, which have the same names in the same order."""
    into = [tensor for named in targets.values() for tensor in named.values()]
    if into:
        # Without autograd's bookkeeping a small tensor costs a quarter of what it costs under no_grad.
        with torch.inference_mode():
            torch._foreach_copy_(into, [tensor for named in sources.values() for tensor in named.values()])


def point_all(
    targets: Mapping[str, Mapping[str, torch.Tensor]], sources: Mapping[str, Mapping[str, torch.Tensor]]
) -> None:
    """Point the tensors of ``targets`` at the memory of those of ``sources``, which have the same names and order."""
    # A module without a tensor that is sent may be named on one side only.
    for (_, _, tensor), (_, _, source) in zip(each(targets), each(sources), strict=True):
        tensor.data = source


def as_bytes(array: np.ndarray[Any, np.dtype[np.uint8]]) -> torch.Tensor:
    """View an array as a tensor that is only read, also where the memory may not be written.

    torch warns of arrays that may not be written, because it cannot prevent writing; what comes out of an object store
    is such an array.
    """
    if array.flags.writeable or not array.size:
        return torch.from_numpy(array)
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory.array = array  # which lives as long as the tensor
    return torch.frombuffer(memory, dtype=torch.uint8)
