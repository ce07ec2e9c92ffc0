"""Memory that weights wait in or pass through, of one process or mapped by all processes of a node."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlightning.errors import ProtocolError, WeightSyncError
from rlightning.weights.layout import Bucket, Layout, NamedTensors, Run, copy_all, pick

_PAGE = 4096
_SHARED_MEMORY = Path("/dev/shm")
_MAPPED: weakref.WeakValueDictionary[str, Mappable] = weakref.WeakValueDictionary()
_NOTHING = "no complete weights are in the buffer yet: send them before they are used"


class Mappable:
    """Memory of one process, or a file that several processes of one node map.

    Pickled and sent to another process of the node, it is the same memory.

    Args:
        layout: Layout of the bundles.
        runs: Runs of a bundle that are written one by one; together they are the bundle.
        header: Numbers that say what the memory holds.
        flats: The memory, uint8.

    Attributes:
        layout, runs: As above.
    """

    def __init__(
        self,
        layout: Layout,
        runs: Sequence[Run],
        header: np.ndarray[Any, np.dtype[np.int64]],
        flats: list[torch.Tensor],
    ) -> None:
        self.layout, self.runs = layout, list(runs)
        self._header, self._flats = header, flats
        self._path: str | None = None

    @classmethod
    def _create(cls, layout: Layout, runs: Sequence[Run], header: int, flats: list[int]) -> Any:
        """Create a file for a header of some numbers and runs of some bytes, and map it."""
        sizes = [8 * header, *flats]
        about = {"kind": cls.__name__, "runs": list(runs), "sizes": sizes, "layout": layout.to_json()}
        size = sum(map(_pages, sizes))
        made = _attach(str(_make_file(size, json.dumps(about).encode() + size.to_bytes(8, "little"))))
        for flat in made._flats:
            flat.zero_()  # the first touch of a page costs more than all later ones
        return made

    @property
    def is_mapped(self) -> bool:
        """Whether other processes may have the same memory."""
        return self._path is not None

    def __reduce__(self) -> Any:
        if self._path is None:
            raise ProtocolError(f"these weights lie in memory of one process: use {type(self).__name__}.create_shared")
        return _attach, (self._path,)

    def unlink(self) -> None:
        """Remove the file's name; the processes that have mapped it keep the memory. May be called twice."""
        if self._path is not None:
            Path(self._path).unlink(missing_ok=True)

    def put(self, version: int, tensors: NamedTensors, index: int) -> None:
        """Write a version from its tensors.

        Args:
            version: The version.
            tensors: All tensors of the bundle, with the names of the layout in their order.
            index: Index of the bucket that is due; memory of whole bundles takes all with the first one.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Newest:
    """The version that was completed last.

    Attributes:
        stamp: Number of completed versions; it identifies this one, also where a version was written twice.
        version: Its version.
        copy: Index of the copy that it is in.
        flat: Its bytes, uint8.
    """

    stamp: int
    version: int
    copy: int
    flat: torch.Tensor


class VersionBuffer(Mappable):
    """Two copies of a bundle: readers act with the *front* one while a writer fills the *back* one.

    A version is written in runs, by one or several writers; the version whose runs were all written last is in front.
    A write that fails leaves the front as it is. A writer must know that no policy acts with the back copy any more.

    Args:
        layout: Layout of the bundles.
        runs: Runs that a version is written in; None means the whole bundle as one.
        device: Torch device, for memory of one process.
        header, flats: A mapped file; None means memory of one process.

    Attributes:
        device: The device of the memory.
    """

    def __init__(
        self,
        layout: Layout,
        runs: Sequence[Run] | None = None,
        header: Any = None,
        flats: list[torch.Tensor] | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        runs = _written_runs(layout, runs)
        header = np.zeros(4 * len(runs), np.int64) if header is None else header
        if flats is None:
            flats = [torch.zeros(layout.num_bytes, dtype=torch.uint8, device=device) for _ in range(2)]
        # Of each copy the stamps and the versions of its runs.
        super().__init__(layout, runs, header.reshape(2, 2, len(runs)), flats)
        self.device = flats[0].device
        self._views = [layout.views(flat) for flat in flats]

    @classmethod
    def create_shared(cls, layout: Layout, runs: Sequence[Run] | None = None) -> VersionBuffer:
        """Create a buffer that other processes of this node can map.

        The file lies in memory where there is room, else in the folder for temporary files. Call ``unlink`` as soon as
        all have mapped it; then nothing is left behind, however they end.

        Raises:
            WeightSyncError: If there is no room in either of them.
        """
        runs = _written_runs(layout, runs)
        made: VersionBuffer = cls._create(layout, runs, 4 * len(runs), [layout.num_bytes] * 2)
        return made

    @property
    def version(self) -> int:
        """Version of the front; -1 before the first."""
        return self._front()[2]

    @property
    def stamp(self) -> int:
        """Number of completed versions."""
        return self._front()[1]

    def newest(self) -> Newest:
        """Return what is in front, without a copy.

        Raises:
            ProtocolError: If there is nothing.
        """
        copy, stamp, version = self._front()
        if not stamp:
            raise ProtocolError(_NOTHING)
        return Newest(stamp, version, copy, self._flats[copy])

    def put(self, version: int, tensors: NamedTensors, index: int = 0) -> None:
        if not index:
            with self._stamping(version, slice(None)) as back:
                copy_all(self._views[back], tensors)

    def write(self, bucket: Bucket) -> None:
        """Write some runs of a version.

        Raises:
            WeightSyncError: If the bucket does not consist of runs of this buffer, or its memory is written over
                meanwhile; the version is not complete then.
        """
        with self.filling(bucket.version, bucket.run) as back:
            back.copy_(bucket.flat)
            bucket.check_unchanged()

    @contextmanager
    def filling(self, version: int, run: Run) -> Iterator[torch.Tensor]:
        """Write a run as bytes: yields their memory, uint8; the run is written when the block ends well."""
        if run[0] == run[1] and self.layout.num_bytes:
            yield self._flats[0][slice(*run)]  # a share of nothing
            return
        starts, stops = ([run[side] for run in self.runs] for side in (0, 1))
        if run[0] not in starts or run[1] not in stops:
            raise WeightSyncError(f"bytes {run[0]} to {run[1]} of version {version} are no runs of {self.runs}")
        with self._stamping(version, slice(starts.index(run[0]), stops.index(run[1]) + 1)) as back:
            yield self._flats[back][slice(*run)]

    def detach(self, copy: int) -> None:
        """Leave the memory of a copy to the tensors that use it, and go on with other memory; not if it is mapped."""
        self._flats[copy] = self._flats[copy].clone()
        self._views[copy] = self.layout.views(self._flats[copy])

    @contextmanager
    def _stamping(self, version: int, runs: slice) -> Iterator[int]:
        """Complete some runs of a version if the block, which writes into the copy that is yielded, ends well."""
        front, stamp, _ = self._front()
        back = 1 - front
        self._header[back, 0, runs] = 0
        yield back
        self._header[back, 1, runs] = version
        self._header[back, 0, runs] = stamp + 1

    def _front(self) -> tuple[int, int, int]:
        """Return copy, stamp and version of what was completed last; stamp 0 and version -1 before the first."""
        front = 0, 0, -1
        for copy, (stamps, versions) in enumerate(self._header.tolist()):
            if stamps[0] > front[1] and len(set(stamps)) == len(set(versions)) == 1:
                front = copy, stamps[0], versions[0]
        return front


def _written_runs(layout: Layout, runs: Sequence[Run] | None) -> list[Run]:
    """Return the runs that have bytes; the whole bundle where none are given."""
    return [run for run in runs or () if run[1] > run[0]] or [(0, layout.num_bytes)]


class SharedBucket(Mappable):
    """Memory of a node that one bucket at a time passes through: a sender writes it, and receivers copy it out.

    A receiver that is late, and still copies when the next bucket is written, finds the stamp changed and fails.

    Attributes:
        layout, runs: Of the bundles, and the buckets that a version passes in.
    """

    def __init__(self, layout: Layout, runs: Sequence[Run], header: Any, flats: list[torch.Tensor]) -> None:
        super().__init__(layout, runs, header, flats)  # the header: stamp, writes so far, version, start and stop
        self._views: dict[Run, NamedTensors] = {}

    @classmethod
    def create_shared(cls, layout: Layout, runs: Sequence[Run]) -> SharedBucket:
        """Create memory for the largest of the buckets; see ``VersionBuffer.create_shared``."""
        made: SharedBucket = cls._create(layout, runs, 5, [max(stop - start for start, stop in runs)])
        return made

    def put(self, version: int, tensors: NamedTensors, index: int) -> None:
        run = self.runs[index]
        self._header[0] = 0
        views = self.views(run)
        copy_all(views, pick(tensors, views))
        self._header[1:] = self._header[1] + 1, version, *run
        self._header[0] = self._header[1]

    def bucket(self) -> Bucket:
        """Return the bucket that is there, without a copy.

        Raises:
            ProtocolError: If there is none.
        """
        stamp, _, version, start, stop = self._header.tolist()
        if not stamp:
            raise ProtocolError(_NOTHING)
        flat, views = self._flats[0][: stop - start], self.views((start, stop))
        return PassingBucket(version, self.layout, start, flat, views, self, stamp)

    def views(self, run: Run) -> NamedTensors:
        """Return the tensors of a bucket; the same as before for each run."""
        if run not in self._views:
            self._views[run] = self.layout.views(self._flats[0][: run[1] - run[0]], run[0])
        return self._views[run]

    def is_current(self, stamp: int) -> bool:
        """Whether the bucket of a stamp is still there."""
        return bool(self._header[0] == stamp)


@dataclass(frozen=True, slots=True, eq=False)
class PassingBucket(Bucket):
    """A bucket in a ``SharedBucket``.

    Attributes:
        memory: The memory.
        stamp: Stamp of the bucket there.
    """

    memory: SharedBucket | None = None
    stamp: int = 0

    def check_unchanged(self) -> None:
        if self.memory is not None and not self.memory.is_current(self.stamp):
            raise WeightSyncError(f"version {self.version} was written over while it was copied")

    def share(self, index: int, count: int) -> Bucket:
        share = Bucket.share(self, index, count)
        return PassingBucket(self.version, self.layout, share.start, share.flat, None, self.memory, self.stamp)


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in (VersionBuffer, SharedBucket)}


def _attach(path: str) -> Any:
    """Map a file once per process: the same object each time, also when the name is gone."""
    mapped = _MAPPED.get(path)
    if mapped is None:
        try:
            with Path(path).open("rb") as file:
                file.seek(-8, os.SEEK_END)
                size = int.from_bytes(file.read(8), "little")
                file.seek(size)
                about = json.loads(file.read()[:-8])
        except OSError as error:
            raise WeightSyncError(f"the weight buffer {path} cannot be mapped (any more): {error}") from error
        memory = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
        starts = itertools.accumulate(map(_pages, about["sizes"]), initial=0)
        header, *flats = [memory[start : start + num] for start, num in zip(starts, about["sizes"], strict=False)]
        layout, runs = Layout.from_json(about["layout"]), [tuple(run) for run in about["runs"]]
        mapped = _MAPPED[path] = _KINDS[about["kind"]](layout, runs, header.view(torch.int64).numpy(), flats)
        mapped._path = path
    return mapped


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
