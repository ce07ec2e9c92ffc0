"""Complete copies of all that acts: one in use, and one to write the next version into."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlightning.errors import ProtocolError, WeightSyncError
from rlightning.weights.layout import Layout, NamedTensors, copy_all

_PAGE = 4096
_SHARED_MEMORY = Path("/dev/shm")
_MAPPED: weakref.WeakValueDictionary[str, VersionBuffer] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Newest:
    """The version that was completed last.

    Attributes:
        stamp: How many were completed; it names this one, also where the same version was written twice.
        version: Its version.
        flat: Its bytes, [num_bytes] uint8.
        tensors: The same bytes as tensors.
    """

    stamp: int
    version: int
    flat: torch.Tensor
    tensors: NamedTensors


class VersionBuffer:
    """Where a writer leaves new versions while readers act with the one before.

    The version completed last is in *front*; the other slot, the *back*, is the writer's. A version may be written in
    parts, by several writers; it is complete when all parts have it. A write that fails leaves the front as it is.
    Where there is one slot, for readers that just copy it, it is the back while it is written, and nothing is in front.

    The memory is this process's own, or a file that several processes of one node map; then a copy sent to another
    process (pickled) is the same memory. Who writes must know that nobody acts with the back any more.

    Args:
        layout: Of what is kept.
        parts: Parts that a version is written in.
        copies: Slots, 1 or 2.
        device: Torch device of memory of one's own.
        memory: Bytes of a mapped file, as ``create_shared`` lays them out; None means memory of one's own.

    Attributes:
        layout, num_parts: The layout, and the parts that a version is written in.
        device: Where the memory is.
    """

    def __init__(
        self,
        layout: Layout,
        parts: int = 1,
        copies: int = 2,
        *,
        device: str = "cpu",
        memory: torch.Tensor | None = None,
    ) -> None:
        self.layout, self.num_parts, self._copies = layout, parts, copies
        self._path: str | None = None
        if memory is None:
            header = np.zeros((copies, 2, parts), np.int64)
            flats = [torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device) for _ in range(copies)]
        else:
            head = 16 * copies * parts
            header = memory[:head].view(torch.int64).view(copies, 2, parts).numpy()
            starts = [_pages(head) + slot * _pages(layout.num_bytes) for slot in range(copies)]
            flats = [memory[start : start + layout.num_bytes] for start in starts]
        self._header: np.ndarray[Any, np.dtype[np.int64]] = (
            header  # of each slot the stamps and the versions of its parts
        )
        self.device = flats[0].device
        self._flats, self._views = flats, [layout.views(flat) for flat in flats]

    @classmethod
    def create_shared(cls, layout: Layout, parts: int = 1, copies: int = 2) -> VersionBuffer:
        """Make slots that other processes of this node can map.

        The file lies in memory where there is room, else in the folder for temporary files. Call ``unlink`` as soon as
        all have mapped it; then nothing is left behind, however they end.

        Raises:
            WeightSyncError: If there is no room in either of them.
        """
        size = _pages(16 * copies * parts) + copies * _pages(layout.num_bytes)
        description = json.dumps({"parts": parts, "copies": copies, "layout": layout.to_json()})
        slots = _attach(str(_make_file(size, description.encode() + size.to_bytes(8, "little"))))
        for flat in slots._flats:
            flat.zero_()  # the first touch of a page costs more than all later ones
        return slots

    def __reduce__(self) -> Any:
        if self._path is None:
            raise ProtocolError("these weights lie in memory of one process: use VersionBuffer.create_shared")
        return _attach, (self._path,)

    def unlink(self) -> None:
        """Remove the file's name; those who have mapped it keep the memory. May be called twice."""
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)

    def let_go(self, flat: torch.Tensor) -> None:
        """Leave the memory of a slot, given by its bytes, to the tensors that use it, and go on with a copy.

        That is for memory that one policy alone acts with.
        """
        slot = next(slot for slot, own in enumerate(self._flats) if own is flat)
        self._flats[slot] = flat.clone()
        self._views[slot] = self.layout.views(self._flats[slot])

    @property
    def version(self) -> int:
        """Version of the front; -1 before the first."""
        return self._front()[2]

    @property
    def stamp(self) -> int:
        """How many versions were completed."""
        return self._front()[1]

    def newest(self) -> Newest:
        """Give what is in front, without a copy.

        Raises:
            ProtocolError: If there is nothing.
        """
        slot, stamp, version = self._front()
        if not stamp:
            raise ProtocolError("no complete weights are in the buffer yet: send them before they are used")
        return Newest(stamp, version, self._flats[slot], self._views[slot])

    def write(self, version: int, tensors: NamedTensors) -> None:
        """Write a whole version; a failure leaves it incomplete.

        Args:
            version: Its version.
            tensors: What it is, with the names of the layout in their order.
        """
        with self._stamping(version) as back:
            copy_all(self._views[back], tensors)

    def write_bytes(self, version: int, flat: torch.Tensor, part: int | None = None) -> None:
        """Write a whole version, or one part of it, from its bytes.

        Args:
            version: Their version.
            flat: The bytes, [num_bytes] uint8.
            part: Which part they are; None means all.

        Raises:
            WeightSyncError: If there are more or fewer than the place has; nothing is complete then.
        """
        with self.filling(version, part) as place:
            if flat.shape != place.shape:
                raise WeightSyncError(f"{flat.numel()} bytes of version {version} came for a place of {place.numel()}")
            place.copy_(flat)

    def copy_from(self, source: VersionBuffer, part: int | None = None) -> int:
        """Write the newest version of other slots of this layout, or one part of it; gives their version.

        Args:
            source: The other slots, of which nothing but that version is read.
            part: Which part is written; None means all.

        Raises:
            WeightSyncError: As ``check_unchanged``; nothing is complete then.
        """
        newest = source.newest()
        with self.filling(newest.version, part) as place:
            place.copy_(newest.flat[slice(*self._range(part))])
            source.check_unchanged(newest)
        return newest.version

    def check_unchanged(self, newest: Newest) -> None:
        """Make sure that nobody has begun to write another version over one that was read meanwhile.

        Raises:
            WeightSyncError: If somebody has: what was read may be a mixture.
        """
        if [newest.stamp, newest.version] not in self._header[:, :, 0].tolist():
            raise WeightSyncError(f"version {newest.version} was written over while it was copied")

    @contextmanager
    def filling(self, version: int, part: int | None = None) -> Iterator[torch.Tensor]:
        """Write a version as bytes: yields their place, [num_bytes] uint8; it is complete when the block ends well.

        Args:
            version: Their version.
            part: Which part they are; None means all.
        """
        with self._stamping(version, slice(None) if part is None else slice(part, part + 1)) as back:
            yield self._flats[back][slice(*self._range(part))]

    def _range(self, part: int | None) -> tuple[int, int]:
        return (0, self.layout.num_bytes) if part is None else self.layout.parts(self.num_parts)[part]

    @contextmanager
    def _stamping(self, version: int, parts: slice = slice(None)) -> Iterator[int]:
        """Complete some parts of a version if the block, which writes into the slot that is yielded, ends well."""
        front, stamp, _ = self._front()
        back = (front + 1) % self._copies
        self._header[back, 0, parts] = 0
        yield back
        self._header[back, 1, parts] = version
        self._header[back, 0, parts] = stamp + 1

    def _front(self) -> tuple[int, int, int]:
        """Give slot, stamp and version of what was completed last; stamp 0 and version -1 before the first."""
        front = 0, 0, -1
        for slot, (stamps, versions) in enumerate(self._header.tolist()):
            if stamps[0] > front[1] and len(set(stamps)) == len(set(versions)) == 1:
                front = slot, stamps[0], versions[0]
        return front


def _attach(path: str) -> VersionBuffer:
    """Map a file once per process; whoever asks again gets the same object, also when the name is gone."""
    slots = _MAPPED.get(path)
    if slots is None:
        try:
            with Path(path).open("rb") as file:
                file.seek(-8, os.SEEK_END)
                size = int.from_bytes(file.read(8), "little")
                file.seek(size)
                description = json.loads(file.read()[:-8])
        except OSError as error:
            raise WeightSyncError(f"the weight buffer {path} cannot be mapped (any more): {error}") from error
        memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        layout = Layout.from_json(description["layout"])
        slots = _MAPPED[path] = VersionBuffer(layout, description["parts"], description["copies"], memory=memory)
        slots._path = path
    return slots


def _make_file(size: int, tail: bytes) -> Path:
    """Make a file of ``size`` bytes and a tail, in the first folder that has room for it."""
    folders = [folder for folder in (_SHARED_MEMORY, Path(tempfile.gettempdir())) if folder.is_dir()]
    for folder in folders:
        path = folder / f"rlightning-weights-{uuid.uuid4().hex}"
        if shutil.disk_usage(folder).free <= size:
            continue
        try:
            with path.open("xb") as file:
                path.chmod(0o600)
                if hasattr(os, "posix_fallocate"):
                    # Others may take the room meanwhile: that is an error now, and would be the end of a process later.
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(size)
                file.seek(size)
                file.write(tail)
            return path
        except OSError:
            path.unlink(missing_ok=True)
    raise WeightSyncError(f"there is no room for {size} bytes of weights in {' or '.join(map(str, folders))}")


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE
