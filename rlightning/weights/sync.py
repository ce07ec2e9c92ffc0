"""Ways to bring weights from the learners to those who act, by ``policy.weight_buffer.buffer_strategy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from rlightning.errors import CallTimeout, RLightningError, WeightSyncError, WorkerError
from rlightning.runtime import Call, Future, Line, WorkerHandle, gather, open_lines, share, together, wait
from rlightning.weights.bundle import Bundle, BundlePart
from rlightning.weights.slots import Slots

CHANNEL = "weights"
"""Channel of eval policies on which weights come in while rollouts go on."""
_REPORT_S = 10.0
"""Seconds that it may take to find out how the process of an eval policy ended."""


class Sender(Protocol):
    """A worker that has weights to give; see ``BasePolicy``."""

    def send_weights(self, receivers: Sequence[Any], shared_weight_buffer: Slots | None = None) -> Bundle | int:
        """Give the weights.

        Args:
            receivers: Who gets what is returned; with nobody, the weights just go into the shared buffer.
            shared_weight_buffer: Memory of this node to write them into as well; with nobody to receive, None means the
                one that ``map_weight_buffer`` named, so that no handle has to travel with each push.

        Returns:
            A copy of all that acts, or just its version where nobody receives.

        Raises:
            WeightSyncError: If they do not fit the shared buffer, which stays as it is then.
        """

    def broadcast_weights(self) -> int:
        """Send the weights to all members of the group of this sender, and give their version."""

    def send_weight_parts(self, count: int) -> list[BundlePart]:
        """Give the weights in parts of nearly equal size, one for each of ``count`` receivers."""

    def map_weight_buffer(self, shared_weight_buffer: Slots) -> None:
        """Map a shared buffer of this node now, to write into it later."""

    def send_weights_ipc(self) -> Slots:
        """Give a handle of memory that holds the weights."""

    def end_hand_over(self) -> None:
        """Make new memory for the next handle, because another receiver will get it."""


class Receiver(Protocol):
    """A worker that acts with weights of somebody else; see ``BasePolicy``."""

    def init_weight_buffer(self, shared_weight_buffer: Slots | None = None) -> None:
        """Let weights go into a buffer first, from which an announcement puts them in force.

        Who receives acts with the buffer's memory itself: nothing is copied, unless a class has its own way of loading.

        Args:
            shared_weight_buffer: Memory that all eval policies of this node act with; None means two slots of this
                policy's own.

        Raises:
            WeightSyncError: If the shared buffer is laid out for another network.
        """

    def share_weight_buffer(self, parts: int = 1) -> Slots:
        """Make a buffer that all policies of this node can map."""

    def unlink_weight_buffer(self) -> None:
        """Say that all have mapped the buffer: nothing of it is left behind when they end."""

    def recv_weights(self, payload: Bundle | BundlePart | None = None) -> int:
        """Take weights: into the buffer, in force with the next update; without a buffer in force at once.

        Args:
            payload: All of them, or the part that is this receiver's; None waits for the sender of this receiver's
                group to broadcast them.

        Returns:
            Their version.

        Raises:
            WeightSyncError: If they do not fit, or are to be in force at once and are older than those that are; what
                was in force stays in force.
        """

    def recv_weights_ipc(self, payload: Slots) -> int:
        """Copy weights out of memory that a sender beside gave; they are in force at once. Gives their version."""

    def notify_update_weights(self) -> None:
        """Announce new weights; without a buffer they are in force already."""

    def wait_for_weight_update_done(self, timeout: float | None = None) -> bool:
        """Wait until the latest announced weights are in force.

        Args:
            timeout: Seconds to wait.

        Returns:
            Whether they are; without a buffer weights are in force when they are sent.

        Raises:
            WeightSyncError: If the last update failed. The next request raises it too.
        """


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one sender brings to one node.

    Attributes:
        sender: A learner.
        receivers: Who receives there, on behalf of all actors of the node.
        actors: All eval policies of the node.
        intra_node: Whether it is the sender's own node.
    """

    sender: WorkerHandle
    receivers: tuple[WorkerHandle, ...]
    actors: tuple[WorkerHandle, ...]
    intra_node: bool


class WeightSync(Protocol):
    """Brings the weights of learners to eval policies; ``prepare`` comes first, and again when policies come or go."""

    def prepare(self, timeout_s: float | None) -> None:
        """Make the buffers."""

    def send(self, timeout_s: float | None) -> int:
        """Bring the weights to where they are put in force from.

        Returns:
            Their version.

        Raises:
            WorkerError: If a policy failed or refused; its cause says why. What was in force stays in force.
            WeightSyncError: If the senders have different versions.
        """

    def announce(self, timeout_s: float | None) -> None:
        """Tell the eval policies, which then put the weights in force between two requests."""

    def wait(self, timeout_s: float | None) -> list[str]:
        """Wait until they are in force everywhere; names the policies that are late."""


class DirectSync:
    """Straight in ("None"): the weights are in force everywhere when ``send`` returns.

    They are handed on unopened: by reference within a process, by Ray's object store elsewhere, where they are stored
    once per node however many receivers are there.
    """

    def __init__(self, deliveries: Sequence[Delivery], carry: Carry) -> None:
        self._deliveries, self._carry = list(deliveries), carry

    def prepare(self, timeout_s: float | None) -> None:
        """Nothing to make."""

    def send(self, timeout_s: float | None) -> int:
        return _same_version(self._carry(self._deliveries, timeout_s))

    def announce(self, timeout_s: float | None) -> None:
        """Nothing to tell."""

    def wait(self, timeout_s: float | None) -> list[str]:
        """Nothing to wait for."""
        return []


class ColocatedSync(DirectSync):
    """From each learner into the eval policy beside it, by a handle of the memory and not by the bytes."""

    def prepare(self, timeout_s: float | None) -> None:
        gather([delivery.sender.call(Sender.end_hand_over) for delivery in self._deliveries], timeout_s)

    def send(self, timeout_s: float | None) -> int:
        calls = [
            receiver.channel(CHANNEL).call(Receiver.recv_weights_ipc, delivery.sender.call(Sender.send_weights_ipc))
            for delivery in self._deliveries
            for receiver in delivery.receivers
        ]
        return _same_version(gather(calls, timeout_s))


class DoubleSync(DirectSync):
    """Two slots per eval policy ("Double"): new weights come in while rollouts go on, and pointers are exchanged."""

    def __init__(self, deliveries: Sequence[Delivery], carry: Carry) -> None:
        super().__init__(deliveries, carry)
        self._actors = [actor for delivery in deliveries for actor in delivery.actors]
        self._lines: list[Line] = []
        self._announcing: list[Future[None]] = []

    def prepare(self, timeout_s: float | None) -> None:
        gather([actor.call(Receiver.init_weight_buffer) for actor in self._actors], timeout_s)
        self._lines = open_lines(self._actors, CHANNEL, timeout_s)

    def announce(self, timeout_s: float | None) -> None:
        # Whether they heard of it is asked together with whether they have done it, which saves a round of calls.
        self._announcing += [line.call(Receiver.notify_update_weights) for line in self._lines]

    def wait(self, timeout_s: float | None) -> list[str]:
        asked = [line.call(Receiver.wait_for_weight_update_done, timeout_s) for line in self._lines]
        futures: list[Future[Any]] = [*self._announcing, *asked]
        try:
            # All must have answered before a failure of one is raised: then nobody acts with the older of two slots.
            wait(futures, len(futures), timeout_s)
        except CallTimeout:
            return [line.name for line, answer in zip(self._lines, asked, strict=True) if not _is_in_force(answer)]
        announcing, self._announcing = self._announcing, []
        gather(announcing, _REPORT_S)
        return [line.name for line, done in zip(self._lines, gather(asked, _REPORT_S), strict=True) if not done]


class SharedSync(DoubleSync):
    """Two slots per node ("Shared"): all eval policies of a node act with the same memory.

    A learner of the node writes into it itself, so that a push costs one copy however many act; to other nodes the
    weights travel once, and the first eval policy there writes them.
    """

    def __init__(self, deliveries: Sequence[Delivery], carry: Carry) -> None:
        super().__init__(deliveries, carry)
        self._writers: list[Line] = []  # to the learners that write into the memory of their own node

    def prepare(self, timeout_s: float | None) -> None:
        # As futures: what a node's policies map is not for this process, which may be on another machine.
        held = [
            (delivery, delivery.actors[0].call(Receiver.share_weight_buffer, self._parts(delivery)))
            for delivery in self._deliveries
        ]
        maps: list[Future[None]] = [
            actor.call(Receiver.init_weight_buffer, buffer) for delivery, buffer in held for actor in delivery.actors
        ]
        writers = [(delivery.sender, buffer) for delivery, buffer in held if delivery.intra_node]
        maps += [sender.call(Sender.map_weight_buffer, buffer) for sender, buffer in writers]
        try:
            gather(maps, timeout_s)
        except RLightningError:
            with suppress(RLightningError):
                self._unlink(timeout_s)
            raise
        self._unlink(timeout_s)
        self._lines = open_lines(self._actors, CHANNEL, timeout_s)
        self._writers = open_lines([sender for sender, _ in writers], CHANNEL, timeout_s)

    def _unlink(self, timeout_s: float | None) -> None:
        """Leave no file behind, however the processes end."""
        gather([delivery.actors[0].call(Receiver.unlink_weight_buffer) for delivery in self._deliveries], timeout_s)

    def send(self, timeout_s: float | None) -> int:
        # By a line too: whoever pushes has waited for what it asked of the learners before.
        written: list[Future[Any]] = [line.call(Sender.send_weights, ()) for line in self._writers]
        carried = self._carry([delivery for delivery in self._deliveries if not delivery.intra_node], timeout_s)
        return _same_version([*gather(written, timeout_s), *carried])

    def _parts(self, delivery: Delivery) -> int:
        return 1


class ShardedSync(SharedSync):
    """Two slots per node, written in parts ("Sharded"): each eval policy of a node receives one part of the bytes."""

    def send(self, timeout_s: float | None) -> int:
        calls: list[Future[Any]] = []
        for delivery in self._deliveries:
            count = len(delivery.receivers)
            if count == 1:
                parts = [delivery.sender.call(Sender.send_weights, ("all",))]
            else:
                parts = delivery.sender.call_split(count, Sender.send_weight_parts, count)
            for receiver, part in zip(delivery.receivers, parts, strict=True):
                calls.append(receiver.channel(CHANNEL).call(Receiver.recv_weights, part))
        return _same_version(gather(calls, timeout_s))

    def _parts(self, delivery: Delivery) -> int:
        return len(delivery.receivers)


def by_object_store(deliveries: Sequence[Delivery], timeout_s: float | None) -> list[int]:
    """Hand the weights on as futures; each sender is asked once, and its weights travel once to each node."""
    receivers: dict[int, list[WorkerHandle]] = {}
    senders = {id(delivery.sender): delivery.sender for delivery in deliveries}
    for delivery in deliveries:
        receivers.setdefault(id(delivery.sender), []).extend(delivery.receivers)
    calls = []
    for key, sender in senders.items():
        payloads = share(sender.call(Sender.send_weights, ("all",)), receivers[key])
        calls += [
            receiver.channel(CHANNEL).call(Receiver.recv_weights, payload)
            for receiver, payload in zip(receivers[key], payloads, strict=True)
        ]
    return gather(calls, timeout_s)


def by_broadcast(deliveries: Sequence[Delivery], timeout_s: float | None) -> list[int]:
    """Let each sender broadcast to all its receivers by their communication group."""
    senders = {id(delivery.sender): delivery.sender for delivery in deliveries}
    receivers = [receiver for delivery in deliveries for receiver in delivery.receivers]
    calls = [Call(sender, Sender.broadcast_weights) for sender in senders.values()]
    calls += [Call(receiver.channel(CHANNEL), Receiver.recv_weights) for receiver in receivers]
    return together(calls, timeout_s)


Carry = Callable[[Sequence[Delivery], float | None], list[int]]
"""Brings the weights of each delivery's sender to its receivers; gives the version at each."""
CARRIERS: dict[str, Carry] = {"object_store": by_object_store, "collective": by_broadcast}
"""Ways between processes by name."""


def _same_version(versions: Sequence[int]) -> int:
    if len(set(versions)) > 1:
        raise WeightSyncError(f"one push brought different versions: {versions}; have all learners trained alike?")
    return versions[0]


def _is_in_force(answer: Future[bool]) -> bool:
    """Tell whether an eval policy has answered that it acts with the announced weights."""
    try:
        return answer.done() and answer.result(_REPORT_S)
    except (WorkerError, CallTimeout):
        return False


WEIGHT_SYNCS: dict[str, Callable[[Sequence[Delivery], Carry], WeightSync]] = {
    "None": DirectSync,
    "Double": DoubleSync,
    "Shared": SharedSync,
    "Sharded": ShardedSync,
}
"""Ways by name."""
