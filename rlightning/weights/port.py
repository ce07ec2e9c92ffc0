"""The way of weights into and out of one policy, in buckets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import torch

from rlightning.errors import ProtocolError, WeightSyncError
from rlightning.observability.timer import Timer
from rlightning.weights.adoption import Adoption
from rlightning.weights.broadcast import broadcast, receive_broadcast
from rlightning.weights.gate import RolloutGate
from rlightning.weights.layout import (
    Bucket,
    Layout,
    NamedTensors,
    Run,
    check_key,
    check_same_layout,
    copy_all,
    even_runs,
    flatten_names,
    pack,
    pick,
)
from rlightning.weights.updater import Updater
from rlightning.weights.version_buffer import Mappable, Newest, SharedBucket, VersionBuffer

if TYPE_CHECKING:
    from rlightning.distributed import Group


class Acting(Protocol):
    """The tensors that act in a policy, as its port needs them.

    Attributes:
        version: Version of the weights.
        loads_plainly: Whether values are copied into the tensors, since no author has written another way.
    """

    version: int
    loads_plainly: bool

    @property
    def name(self) -> str:
        """Name of the policy, for messages."""

    @property
    def device(self) -> str:
        """Torch device of the policy."""

    @property
    def is_offloaded(self) -> bool:
        """Whether the tensors are in host memory for a time."""

    def require_init(self, method: str) -> None:
        """Raise a ``ProtocolError`` where there are no networks yet."""

    def acting(self) -> NamedTensors:
        """Return the live tensors."""

    def load(self, tensors: NamedTensors, version: int) -> None:
        """Load a whole version by the author's method."""


class WeightPort:
    """Weights in and out of one policy: ``read`` and ``write`` buckets, ``announce`` what came, ``wait`` for it.

    Without a buffer, what comes is copied into the tensors that act, between two requests. With a buffer it waits there
    until it is announced, and then the policy acts with the memory of the buffer itself: an exchange of pointers. An
    author's own way of loading gets a whole version in either case.

    Attributes:
        failure: The reason for which the last update failed; while there is one, no request is answered.
    """

    def __init__(
        self,
        acting: Acting,
        gate: RolloutGate,
        timer: Timer,
        steady: AbstractContextManager[object],
        group: Callable[[], Group],
        *,
        bucket_bytes: int,
        buffers_on_device: bool,
    ) -> None:
        """Begin without a buffer.

        Args:
            acting: The tensors that act.
            gate: Admits requests.
            timer: Measures exports and imports.
            steady: Held while the tensors do not change by learning.
            group: Returns the group of the sender of a broadcast and its receivers.
            bucket_bytes: Largest size of a bucket; a larger tensor has a bucket of its own.
            buffers_on_device: Whether a buffer of this policy's own is on its device, and not in host memory.
        """
        self._acting, self._gate, self._timer, self._steady, self._group = acting, gate, timer, steady, group
        self._bucket_bytes, self._on_device = bucket_bytes, buffers_on_device
        self.failure: BaseException | None = None
        self._layout: Layout | None = None
        self._arriving: int | None = None  # version of which some buckets are copied in, while requests wait
        self._mapped: Mappable | None = None  # memory of this node that is written into, or copied out of
        self._buffer: VersionBuffer | None = None
        self._adoption: Adoption | None = None  # of the memory of the buffer
        self._updater: Updater | None = None

    def forget(self) -> None:
        """Begin anew for networks that are built anew; a buffer is no longer in use."""
        self._buffer = self._adoption = self._layout = None

    def layout(self) -> Layout:
        """Return the layout of the tensors that act."""
        return self._layout_of(self._acting.acting())

    def _layout_of(self, tensors: NamedTensors) -> Layout:
        if self._layout is None or not self._layout.fits(tensors):
            self._layout = Layout.of(tensors)
        return self._layout

    @property
    def name(self) -> str:
        """Name of the policy, for messages."""
        return self._acting.name

    @property
    def is_buffered(self) -> bool:
        """Whether weights wait in a buffer until they are announced."""
        return self._buffer is not None

    def runs(self, layout: Layout | None = None) -> list[Run]:
        """Return the runs of bytes that the buckets are."""
        return (layout if layout is not None else self.layout()).buckets(self._bucket_bytes)

    # Out

    def read(self, index: int | None = None) -> Bucket:
        """Copy a bucket, by its index, or the whole bundle."""
        with self._steady, self._timer.measure("export"):
            tensors = self._acting.acting()
            layout = self._layout_of(tensors)
            return pack(tensors, self._acting.version, layout, None if index is None else self.runs(layout)[index])

    def buckets(self) -> Iterator[Bucket]:
        """Copy bucket after bucket."""
        first = self.read(0)
        yield first
        yield from map(self.read, range(1, len(self.runs(first.layout))))

    def fill(self, memory: Mappable | None, index: int = 0) -> int:
        """Write a bucket into memory that others map, the one of ``map`` where none is named; return its version.

        Raises:
            WeightSyncError: If it does not fit; the memory holds no complete version then, or the one before.
        """
        memory = self._require_mapped() if memory is None else memory
        with self._steady, self._timer.measure("export"):
            tensors = self._acting.acting()
            check_key(self._layout_of(tensors), memory.layout.key, self._acting.name)
            memory.put(self._acting.version, tensors, index)
            return self._acting.version

    def broadcast(self) -> int:
        """Send all buckets to the members of the group of this sender; return their version."""
        return broadcast(self, self._group(), self._acting.device)

    # In

    def write(self, bucket: Bucket) -> int:
        """Write a bucket into the buffer, or without one into force; return its version.

        Requests wait from the first bucket of a version to its last one, where the buckets go into force.

        Raises:
            WeightSyncError: If it does not fit, or its version is older than the one in force and would replace it.
                The weights in force stay so if nothing of the version was copied in before. Otherwise no request is
                answered until a whole version has come.
        """
        if self._buffer is not None:
            with self._timer.measure("receive"):
                self._check_fits(bucket)
                self._buffer.write(bucket)
        elif bucket.is_whole or not self._acting.loads_plainly:
            self.put_in_force(bucket)
        else:
            self._copy_in_force(bucket)
        return bucket.version

    def receive(self, share: tuple[int, int] | None = None) -> int:
        """Copy a bucket, or a share of it, out of the memory of ``map``; return its version."""
        memory = self._require_mapped()
        if not isinstance(memory, SharedBucket):
            raise ProtocolError("the memory that is mapped is no memory to receive from")
        bucket = memory.bucket()
        return self.write(bucket if share is None else bucket.share(*share))

    def receive_broadcast(self) -> int:
        """Receive all buckets that the sender of this policy's group broadcasts; return their version."""
        return receive_broadcast(self, self._group(), self._acting.device)

    def filling(self, layout: Layout, version: int, run: Run) -> AbstractContextManager[torch.Tensor] | None:
        """Return a context that yields the memory of a run in the buffer, where that is on the policy's device."""
        buffer = self._buffer
        if buffer is None or layout.key != buffer.layout.key or buffer.device != torch.device(self._acting.device):
            return None
        return buffer.filling(version, run)

    def abandon(self) -> None:
        """End a transfer that broke off: if some of its buckets are in force, no request is answered."""
        if self._arriving is not None:
            self._end_arrival(
                WeightSyncError(f"the transfer of version {self._arriving} broke off; push the weights once more")
            )

    def _copy_in_force(self, bucket: Bucket) -> None:
        """Copy a bucket into the tensors that act; requests wait until the last one has come."""
        with self._timer.measure("import"):
            if not bucket.start and self._arriving is None:
                self._gate.update().__enter__()
                self._arriving = bucket.version
            if self._arriving is None:
                raise WeightSyncError(f"the first bucket of version {bucket.version} did not come")
            try:
                if bucket.start and bucket.version != self._arriving:
                    raise WeightSyncError(f"version {bucket.version} came in the middle of version {self._arriving}")
                self._arriving = bucket.version
                self._check_newer(bucket.version)
                self._check_fits(bucket)
                self._copy(bucket)
            except BaseException as error:
                self._end_arrival(error)
                raise
            if bucket.run[1] == bucket.layout.num_bytes:
                self._acting.version = bucket.version
                self._end_arrival(None)

    def _end_arrival(self, failure: BaseException | None) -> None:
        # A failure is noted before the gate opens: no request may act with half of a version.
        self.failure, self._arriving = failure, None
        self._gate.update().__exit__(None, None, None)
        self._gate.changed()

    def put_in_force(self, bucket: Bucket) -> int:
        """Put a whole version in force between two requests, whatever buffer there is; errors as in ``write``."""
        with self._timer.measure("import"), self._gate.update(), self._outcome():
            self._check_newer(bucket.version)  # in here, since another thread may have put newer ones in force
            if self._acting.loads_plainly and self.layout().key == bucket.layout.key:
                self._copy(bucket)
            else:
                self.load(bucket.views(), bucket.version)
                bucket.check_unchanged()
            self._acting.version = bucket.version
        return bucket.version

    def _copy(self, bucket: Bucket) -> None:
        self.own_memory()
        views = bucket.views()
        copy_all(pick(self._acting.acting(), views), views)
        bucket.check_unchanged()

    def load(self, tensors: NamedTensors, version: int) -> None:
        """Load a whole version as the policy loads it; what differs by name, shape or dtype changes nothing."""
        if self._acting.loads_plainly:
            own = flatten_names(self._acting.acting())
            self.copy_in(own, flatten_names(tensors), self._acting.name, version)
        else:
            self._acting.load(tensors, version)

    def copy_in(
        self,
        own: Mapping[str, torch.Tensor],
        given: Mapping[str, torch.Tensor],
        receiver: str,
        version: int | None = None,
    ) -> None:
        """Copy tensors into those of the policy, never into a buffer that others act with.

        Raises:
            WeightSyncError: If names, shapes or dtypes differ; nothing is changed then.
        """
        check_same_layout(own, given, receiver, version)
        self.own_memory()
        copy_all({"": own}, {"": {name: given[name] for name in own}})

    # Memory of the node

    def make_buffer(self, shares: int = 1, in_buckets: bool = True) -> VersionBuffer:
        """Make a buffer that the policies of this node can map.

        Args:
            shares: Shares that each bucket is written in.
            in_buckets: Whether a version is written bucket by bucket, and not as a whole.
        """
        self._acting.require_init("share_weights")
        layout = self.layout()
        runs = [
            (start + first, start + last)
            for start, stop in (self.runs(layout) if in_buckets else [(0, layout.num_bytes)])
            for first, last in even_runs(stop - start, shares)
        ]
        return VersionBuffer.create_shared(layout, runs)

    def make_passage(self, in_buckets: bool = True) -> SharedBucket:
        """Make memory that the policies of this node can map, for one bucket or for a whole version."""
        self._acting.require_init("share_weights")
        layout = self.layout()
        return SharedBucket.create_shared(layout, self.runs(layout) if in_buckets else [(0, layout.num_bytes)])

    def map(self, memory: Mappable) -> None:
        """Map memory of this node, to write into it or to copy out of it.

        Raises:
            WeightSyncError: If it is laid out for another network.
        """
        self._acting.require_init("map_weights")
        check_key(self.layout(), memory.layout.key, self._acting.name)
        self._mapped = memory

    def _require_mapped(self) -> Mappable:
        if self._mapped is None:
            raise ProtocolError("there is no memory of the node to use: PolicyGroup.sync_weights has it mapped")
        return self._mapped

    # The buffer, and into force

    def use(self, buffer: VersionBuffer | None) -> None:
        """Use a buffer, in which weights wait until they are announced; None makes one of this policy's own."""
        layout = self.layout()
        if buffer is None:
            device = self._acting.device if self._on_device else "cpu"
            buffer = VersionBuffer(layout, self.runs(layout), device=device)
        check_key(layout, buffer.layout.key, self._acting.name)
        with self._gate.update():
            self.own_memory()
            self._buffer, self._adoption = buffer, Adoption(buffer)
        if self._updater is None:
            self._updater = Updater(self._follow)
            threading.Thread(target=self._updater.run, name="weight updater", daemon=True).start()

    def end_buffer(self) -> None:
        """Put weights straight into force from now on."""
        if self._buffer is not None:
            with self._gate.update():
                self.own_memory()
                self._buffer = self._adoption = None

    def announce(self) -> None:
        """Update from the buffer, where there is one: at once where no request is in flight, else by a thread."""
        if self._updater is not None:
            self._updater.announce(at_once=not self._gate.num_requests)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the latest announced weights are in force; returns whether they are.

        Raises:
            WeightSyncError: If the last update failed.
        """
        done = self._updater is None or self._updater.wait(timeout)
        if self.failure is not None:
            raise WeightSyncError(f"the last weight update failed: {self.failure}") from self.failure
        return done

    def wait_for_version(self, version: int) -> None:
        """Wait until weights of a version, or newer ones, are in force, or an update has failed."""
        self._gate.wait_for(lambda: self._acting.version >= version or self.failure is not None)

    def forget_version(self) -> None:
        """Accept the next version whatever its number; until then no request is answered."""
        with self._gate.update():
            self._acting.version = -1

    def run_updater(self) -> None:
        """Follow announcements until the policy is gone."""
        if self._updater is None:
            raise ProtocolError("there is no weight buffer: call init_weight_buffer first")
        self._updater.run()

    def _follow(self) -> None:
        with suppress(Exception):  # it is raised by the next wait and the next request
            self.update_from_buffer()

    def update_from_buffer(self) -> None:
        """Put the newest complete weights of the buffer in force; errors as in ``write``."""
        buffer = self._buffer
        if buffer is None:
            raise ProtocolError("there is no weight buffer: call init_weight_buffer first")
        with self._outcome():
            if self._adoption is not None and self._adoption.stamp == buffer.stamp:
                return
            # A failure is noted before the gate opens: no request may act with half of a version.
            with self._timer.measure("import"), self._gate.update(), self._outcome():
                if buffer is not self._buffer:
                    return  # another buffer took its place while requests were in flight
                # Read in here, since another thread may have put newer ones in force meanwhile.
                newest = buffer.newest()
                self._check_newer(newest.version)
                self._adopt(buffer, newest)
                self._acting.version = newest.version

    def _adopt(self, buffer: VersionBuffer, newest: Newest) -> None:
        """Act with the memory of the buffer, or load out of it where pointers cannot be exchanged."""
        adoption = self._adoption
        assert adoption is not None
        # By its name: to make a torch device takes longer here than all the rest.
        same_device = buffer.device.type == self._acting.device.partition(":")[0]
        if self._acting.loads_plainly and same_device and not self._acting.is_offloaded:
            tensors = self._acting.acting()
            check_key(self._layout_of(tensors), buffer.layout.key, self._acting.name)
            if adoption.adopt(newest, tensors, self._acting.name):
                return
        self.load(adoption.views(newest), newest.version)

    def own_memory(self) -> None:
        """Copy the tensors out of a buffer, before anything is written into them."""
        if self._adoption is not None and self._adoption.is_adopted:
            self._adoption.end(self._acting.acting())

    @contextmanager
    def _outcome(self) -> Iterator[None]:
        """Run an update: after one that failed no request is answered until another has succeeded."""
        try:
            yield
        except BaseException as error:
            self.failure = error
            self._gate.changed()
            raise
        self.failure = None

    def _check_newer(self, version: int) -> None:
        if version < self._acting.version:
            raise WeightSyncError(
                f"weights of version {version} came after those of version {self._acting.version}: a group goes back "
                f"to an older state by PolicyGroup.load_training_state"
            )

    def _check_fits(self, bucket: Bucket) -> None:
        """Compare layouts; where they differ, name the tensors that do."""
        tensors = self._acting.acting()
        layout = self._layout_of(tensors) if self._buffer is None else self._buffer.layout
        if layout.key != bucket.layout.key:
            if bucket.is_whole:
                given = flatten_names(bucket.views())
                check_same_layout(flatten_names(tensors), given, self._acting.name, bucket.version)
            check_key(layout, bucket.layout.key, self._acting.name)
