"""Ways of weights between processes, whatever becomes of them where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlightning.errors import RLightningError
from rlightning.runtime import Call, FastChannel, Future, WorkerHandle, collective_call, gather, open_channels, share
from rlightning.weights.delivery import CHANNEL, Delivery, Receiver, Sender, Sharer
from rlightning.weights.version_buffer import VersionBuffer


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
    return collective_call(calls, timeout_s)


Carry = Callable[[Sequence[Delivery], float | None], list[int]]
"""Brings the weights of each delivery's sender to its receivers; gives the version at each."""
CARRIERS: dict[str, Carry] = {"object_store": by_object_store, "collective": by_broadcast}
"""Ways between processes by name."""


class NodeMemory:
    """From learners to the eval policies of their own nodes, by memory that all of a node have mapped.

    A learner writes into it and they copy it out. That takes two messages by a fast channel and nothing else, where the
    object store of a node takes two copies more and some milliseconds for each call.
    """

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = list(deliveries)
        self._senders: list[FastChannel] = []
        self._receivers: list[list[FastChannel]] = []

    def prepare(self, timeout_s: float | None) -> None:
        """Make the memory and have it mapped."""
        wanted = [
            NewBuffer(one.sender, [(worker, Sharer.map_weight_buffer) for worker in (one.sender, *one.receivers)], 1, 1)
            for one in self._deliveries
        ]
        make_buffers(wanted, timeout_s)
        self._senders = open_channels([one.sender for one in self._deliveries], CHANNEL, timeout_s)
        self._receivers = [open_channels(one.receivers, CHANNEL, timeout_s) for one in self._deliveries]

    def write(self) -> list[Future[Any]]:
        """Let the learners write, without waiting for them."""
        return [channel.call(Sender.send_weights, ()) for channel in self._senders]

    def read(self, written: Sequence[Future[Any]], timeout_s: float | None, *, in_parts: bool = False) -> list[int]:
        """Let the eval policies copy what was written, all of it or each its part; gives the versions of all."""
        sent = gather(written, timeout_s)
        calls = [
            channel.call(Receiver.recv_weights_ipc, None, *([part] if in_parts else []))
            for channels in self._receivers
            for part, channel in enumerate(channels)
        ]
        return [*sent, *gather(calls, timeout_s)]


@dataclass(frozen=True, slots=True)
class NewBuffer:
    """A buffer to be made.

    Attributes:
        maker: Who makes it.
        maps: Who maps it, each with the method by which.
        parts: Parts that a version is written in.
        copies: Versions that it holds: two where those who map it act with its memory, one where they copy it.
    """

    maker: WorkerHandle
    maps: Sequence[tuple[WorkerHandle, Callable[[Any, VersionBuffer], None]]]
    parts: int
    copies: int


def make_buffers(wanted: Sequence[NewBuffer], timeout_s: float | None) -> None:
    """Have workers make buffers, and have others map them; no file is left behind, also where that fails.

    The buffers stay futures: what the policies of a node map is not for this process, which may be on another machine.

    Args:
        wanted: The buffers.
        timeout_s: Seconds that all of it may take.
    """

    def unlink(workers: Sequence[WorkerHandle]) -> None:
        gather([worker.call(Sharer.unlink_weight_buffer) for worker in workers], timeout_s)

    made = [(one, one.maker.call(Sharer.share_weight_buffer, one.parts, one.copies)) for one in wanted]
    try:
        gather([worker.call(method, buffer) for one, buffer in made for worker, method in one.maps], timeout_s)
        unlink([one.maker for one in wanted])
    except RLightningError:
        # Whoever made it may be gone; those who have mapped it know its name, too.
        with suppress(RLightningError):
            unlink([worker for one in wanted for worker in (one.maker, *(mapping for mapping, _ in one.maps))])
        raise
