"""The weights of learners on their way to the eval policies, bucket after bucket.

Independent choices meet here: where weights wait (``BufferStrategy``), and by which carrier each delivery goes: memory
of the node, or one of the functions of type ``Carry``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from rlightning.errors import CallTimeout, RLightningError, WeightSyncError, WorkerError
from rlightning.runtime import (
    Call,
    FastChannel,
    Future,
    PartHandle,
    WorkerHandle,
    collective_call,
    gather,
    open_channels,
    share,
    wait,
)
from rlightning.weights.hooks import CHANNEL, PORT, Hooks
from rlightning.weights.layout import Bucket
from rlightning.weights.port import WeightPort
from rlightning.weights.topology import BufferStrategy
from rlightning.weights.version_buffer import Mappable

_REPORT_S = 10.0
"""Seconds that it may take to find out how the process of an eval policy ended."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one sender brings to one node.

    Attributes:
        sender: A learner.
        receivers: The policies that receive there, on behalf of all actors of the node.
        actors: All eval policies of the node.
        in_shares: Whether each of several receivers takes a share; else each takes all.
        intra_node: Whether it is the sender's own node.
        by_memory: Whether they go by memory that all of them map.
    """

    sender: WorkerHandle
    receivers: tuple[WorkerHandle, ...]
    actors: tuple[WorkerHandle, ...]
    in_shares: bool
    intra_node: bool
    by_memory: bool = False

    def shares(self) -> list[tuple[int, int] | None]:
        """Return index and number of the share of each receiver; None where it takes all."""
        count = len(self.receivers)
        return [(index, count) if self.in_shares and count > 1 else None for index in range(count)]


Carry = Callable[[Sequence[Delivery], "int | None", "float | None"], list[int]]
"""Brings a bucket, by its index, or the whole bundle of each delivery's sender to its receivers, within some seconds;
returns the version at each."""


def by_object_store(deliveries: Sequence[Delivery], bucket: int | None, timeout_s: float | None) -> list[int]:
    """Pass the weights on as futures; each sender is asked once, and its weights travel once to each node."""
    calls: list[Future[int]] = []
    for sender in _senders(deliveries):
        theirs = [one for one in deliveries if one.sender is sender]
        receivers = [receiver for one in theirs for receiver in one.receivers]
        shares = [own for one in theirs for own in one.shares()]
        sent = sender.call(Hooks.send_weights, ("all",), *_argument(bucket))
        payloads = share(sent, receivers) if len(receivers) > 1 else [sent]
        calls += map(_deliver, receivers, payloads, shares)
    return gather(calls, timeout_s)


def by_handle(deliveries: Sequence[Delivery], bucket: int | None, timeout_s: float | None) -> list[int]:
    """Pass on what each sender returns for the policy beside it, as the contract of a policy says."""
    calls = [
        receiver.call(Hooks.recv_weights_ipc, delivery.sender.call(Hooks.send_weights_ipc))
        for delivery in deliveries
        for receiver in delivery.receivers
    ]
    return gather(calls, timeout_s)


def by_broadcast(deliveries: Sequence[Delivery], bucket: int | None, timeout_s: float | None) -> list[int]:
    """Broadcast all buckets of each sender to its receivers by their group, when the first one is due."""
    if bucket:
        return []
    calls = [Call(sender.part(PORT), WeightPort.broadcast) for sender in _senders(deliveries)]
    calls += [Call(end, Hooks.recv_weights) for one in deliveries for end in one.receivers]
    return collective_call(calls, timeout_s)


def _senders(deliveries: Sequence[Delivery]) -> list[WorkerHandle]:
    return list({id(one.sender): one.sender for one in deliveries}.values())


def _argument(bucket: int | None) -> tuple[Any, ...]:
    """Return the arguments of ``send_weights`` that ask for a bucket."""
    return () if bucket is None else (None, bucket)


def _deliver(worker: WorkerHandle, payload: Future[Any], share: tuple[int, int] | None) -> Future[int]:
    method = Hooks.recv_weights
    if share is None:
        return worker.call(method, payload)
    # An author's own method takes the payload alone.
    return worker.run(_take_share, payload, *share, on=worker.name, method=method.__name__)


def _take_share(worker: Any, payload: Bucket, index: int, count: int) -> int:
    received: int = worker.recv_weights(payload.share(index, count))
    return received


class NodeMemory:
    """Carries weights from learners to the eval policies of their own nodes, by memory that all of a node have mapped.

    A learner writes a bucket and they copy it out. That takes two messages by a socket and nothing else, where the
    object store of a node takes two copies more and some milliseconds for each call.
    """

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = list(deliveries)
        self._senders: list[FastChannel] = []
        self._receivers: list[list[FastChannel]] = []

    def wanted(self, in_buckets: bool) -> list[NewMemory]:
        """Return the memory that it takes."""
        return [
            NewMemory(
                one.sender.part(PORT),
                (WeightPort.make_passage, in_buckets),
                [(worker.part(PORT), WeightPort.map) for worker in (one.sender, *one.receivers)],
            )
            for one in self._deliveries
        ]

    def open(self, timeout_s: float | None) -> None:
        """Open the sockets."""
        self._senders = open_channels([one.sender for one in self._deliveries], CHANNEL, timeout_s)
        self._receivers = [open_channels(one.receivers, CHANNEL, timeout_s) for one in self._deliveries]

    def write(self, bucket: int | None) -> list[Future[Any]]:
        """Start to write a bucket at the learners, without waiting for them."""
        return [channel.call(Hooks.send_weights, (), *_argument(bucket)) for channel in self._senders]

    def read(self, written: Sequence[Future[Any]], timeout_s: float | None) -> list[int]:
        """Copy what was written at the eval policies; return the versions of all."""
        sent = gather(written, timeout_s)
        calls = [
            channel.call(Hooks.recv_weights_ipc, None, share)
            for delivery, channels in zip(self._deliveries, self._receivers, strict=True)
            for channel, share in zip(channels, delivery.shares(), strict=True)
        ]
        return [*sent, *gather(calls, timeout_s)]


class WeightSync:
    """Brings the weights of learners to eval policies; ``prepare`` comes first, and again when policies come or go.

    Args:
        strategy: How weights wait at the eval policies.
        deliveries: Which learner sends to which eval policies.
        carry: Brings those that do not go by memory of a node.
        buckets: Number of buckets that a push consists of; one is the whole bundle.

    Attributes:
        is_direct: Whether weights are in force when they are sent, so that nothing has to be waited for.
    """

    def __init__(self, strategy: BufferStrategy, deliveries: Sequence[Delivery], carry: Carry, buckets: int) -> None:
        self.is_direct = not strategy.is_buffered
        self.deliveries = list(deliveries)
        self._strategy, self._carry = strategy, carry
        self._buckets: Sequence[int | None] = range(buckets) if buckets > 1 else [None]
        self._near = NodeMemory([delivery for delivery in deliveries if delivery.by_memory])
        self._far = [
            replace(one, receivers=tuple(end.channel(CHANNEL) for end in one.receivers))
            for one in deliveries
            if one.receivers and not one.by_memory
        ]
        self._actors = [actor for delivery in deliveries for actor in delivery.actors]
        self._channels: list[FastChannel] = []
        self._writers: list[FastChannel] = []  # to the learners that write into the buffer of their own node
        self._announcing: list[Future[None]] = []

    def prepare(self, timeout_s: float | None) -> None:
        """Make the buffers, and the memory that buckets pass through."""
        wanted = self._near.wanted(len(self._buckets) > 1)
        if self._strategy.is_per_node:
            wanted += map(self._node_buffer, self.deliveries)
        elif self._strategy.is_buffered:
            gather([actor.call(Hooks.init_weight_buffer) for actor in self._actors], timeout_s)
        else:
            # By another strategy there may have been buffers, from which nothing would be put in force now.
            gather([actor.run(_end_buffer) for actor in self._actors], timeout_s)
        make_memory(wanted, timeout_s)
        self._near.open(timeout_s)
        if self._strategy.is_buffered:
            self._channels = open_channels(self._actors, CHANNEL, timeout_s)
        self._writers = open_channels([one.sender for one in self.deliveries if not one.receivers], CHANNEL, timeout_s)

    def _node_buffer(self, delivery: Delivery) -> NewMemory:
        """Return the buffer that all eval policies of a node act with, and a learner of the node may write into."""
        maps: list[tuple[Any, Any]] = [(actor, Hooks.init_weight_buffer) for actor in delivery.actors]
        if not delivery.receivers:
            maps.append((delivery.sender.part(PORT), WeightPort.map))
        shares = len(delivery.receivers) if delivery.in_shares else 1
        make = (WeightPort.make_buffer, shares, len(self._buckets) > 1)
        return NewMemory(delivery.actors[0].part(PORT), make, maps)

    def send(self, timeout_s: float | None) -> int:
        """Bring the weights to where they are put in force from.

        Returns:
            Their version.

        Raises:
            WorkerError: If a policy failed or refused; its cause says why. What was in force stays in force, unless
                some buckets were put in force already: then the eval policies refuse requests until the next push.
            WeightSyncError: If the senders have different versions.
        """
        versions: list[int] = []
        try:
            for bucket in self._buckets:
                # By a socket too: what was asked of the learners before has been waited for.
                writing: list[Future[Any]] = [one.call(Hooks.send_weights, ()) for one in self._writers if not bucket]
                passing = self._near.write(bucket)
                carried = self._carry(self._far, bucket, timeout_s) if self._far else []
                versions += [*gather(writing, timeout_s), *carried, *self._near.read(passing, timeout_s)]
        except BaseException:
            if self.is_direct and len(self._buckets) > 1:
                with suppress(RLightningError):
                    gather([actor.part(PORT).call(WeightPort.abandon) for actor in self._actors], timeout_s)
            raise
        if len(set(versions)) > 1:
            raise WeightSyncError(f"one push brought different versions: {versions}; have all learners trained alike?")
        return versions[0]

    def announce(self) -> None:
        """Announce what was sent to the eval policies, which put it in force between two requests."""
        # Whether they heard of it is asked together with whether they have done it, which saves a round of calls.
        self._announcing += [channel.call(Hooks.notify_update_weights) for channel in self._channels]

    def wait(self, timeout_s: float | None) -> list[str]:
        """Wait until what was announced is in force everywhere; returns the names of the policies that are late."""
        if not self._channels:
            return []
        asked = [channel.call(Hooks.wait_for_weight_update_done, timeout_s) for channel in self._channels]
        futures: list[Future[Any]] = [*self._announcing, *asked]
        try:
            # All must have answered before a failure of one is raised: then no policy acts with the older version.
            wait(futures, len(futures), timeout_s)
        except CallTimeout:
            pairs = zip(self._channels, asked, strict=True)
            return [channel.name for channel, answer in pairs if not _is_in_force(answer)]
        announcing, self._announcing = self._announcing, []
        gather(announcing, _REPORT_S)
        done = gather(asked, _REPORT_S)
        return [channel.name for channel, is_done in zip(self._channels, done, strict=True) if not is_done]


@dataclass(frozen=True, slots=True)
class NewMemory:
    """Memory of a node that is to be made.

    Attributes:
        maker: The port that makes it.
        make: The method by which, and its arguments.
        maps: The workers and ports that map it, each with the method by which.
    """

    maker: PartHandle
    make: tuple[Any, ...]
    maps: Sequence[tuple[WorkerHandle | PartHandle, Any]]


def make_memory(wanted: Sequence[NewMemory], timeout_s: float | None) -> None:
    """Make and map memory; no file is left behind, also where that fails.

    It stays a future: what the policies of a node map is not for this process, which may be on another machine.

    Args:
        wanted: The memory.
        timeout_s: Seconds that each step may take.
    """
    made = [(one, one.maker.call(*one.make)) for one in wanted]
    try:
        gather([handle.call(method, memory) for one, memory in made for handle, method in one.maps], timeout_s)
        gather([one.maker.worker.run(_unlink, memory) for one, memory in made], timeout_s)
    except RLightningError:
        # The maker may be gone; all that have mapped the file know its name, too.
        for one, memory in made:
            for handle in (one.maker, *(mapping for mapping, _ in one.maps)):
                with suppress(RLightningError):
                    worker = handle.worker if isinstance(handle, PartHandle) else handle
                    worker.run(_unlink, memory).result(timeout_s)
        raise


def _unlink(_worker: Any, memory: Mappable) -> None:
    memory.unlink()


def _end_buffer(worker: Any) -> None:
    port = getattr(worker, PORT, None)  # a test double has none, and no buffer
    if port is not None:
        port.end_buffer()


def _is_in_force(answer: Future[bool]) -> bool:
    """Whether an eval policy has answered that it acts with the announced weights."""
    try:
        return answer.done() and answer.result(_REPORT_S)
    except (WorkerError, CallTimeout):
        return False
