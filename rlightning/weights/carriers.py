"""Ways of weights between processes, whatever becomes of them where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rlightning.errors import RLightningError
from rlightning.runtime import Call, Future, Line, WorkerHandle, gather, open_lines, share, together
from rlightning.weights.delivery import CHANNEL, Delivery, Receiver, Sender, Sharer
from rlightning.weights.slots import Slots


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


class NodeMemory:
    """From learners to the eval policies of their own nodes, by memory that all of a node have mapped.

    A learner writes into it and they copy it out. That takes two messages by a line and nothing else, where the object
    store of a node takes two copies more and some milliseconds for each call.
    """

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._deliveries = list(deliveries)
        self._senders: list[Line] = []
        self._receivers: list[list[Line]] = []

    def prepare(self, timeout_s: float | None) -> None:
        """Make the memory and have it mapped."""
        deliveries = self._deliveries

        def map_all(buffers: Sequence[Future[Slots]]) -> list[Future[None]]:
            return [
                worker.call(Sharer.map_weight_buffer, buffer)
                for delivery, buffer in zip(deliveries, buffers, strict=True)
                for worker in (delivery.sender, *delivery.receivers)
            ]

        make_buffers([(delivery.sender, 1, 1) for delivery in deliveries], map_all, timeout_s)
        self._senders = open_lines([delivery.sender for delivery in deliveries], CHANNEL, timeout_s)
        self._receivers = [open_lines(delivery.receivers, CHANNEL, timeout_s) for delivery in deliveries]

    def write(self) -> list[Future[Any]]:
        """Let the learners write, without waiting for them."""
        return [line.call(Sender.send_weights, ()) for line in self._senders]

    def read(self, written: Sequence[Future[Any]], timeout_s: float | None, *, in_parts: bool = False) -> list[int]:
        """Let the eval policies copy what was written, all of it or each its part; gives the version at each."""
        gather(written, timeout_s)
        calls = [
            line.call(Receiver.recv_weights_ipc, None, part if in_parts else None)
            for lines in self._receivers
            for part, line in enumerate(lines)
        ]
        return gather(calls, timeout_s)


def make_buffers(
    makers: Sequence[tuple[WorkerHandle, int, int]],
    map_all: Callable[[Sequence[Future[Slots]]], Sequence[Future[None]]],
    timeout_s: float | None,
) -> None:
    """Have workers make buffers, and have others map them; no file is left behind, also where that fails.

    Args:
        makers: Workers, with the parts and the copies of the buffer that each makes.
        map_all: Given the buffers, calls those who map them. They stay futures: what the policies of a node map is not
            for this process, which may be on another machine.
        timeout_s: Seconds that all of it may take.
    """

    def unlink() -> None:
        gather([maker.call(Sharer.unlink_weight_buffer) for maker, _, _ in makers], timeout_s)

    buffers = [maker.call(Sharer.share_weight_buffer, parts, copies) for maker, parts, copies in makers]
    try:
        gather(map_all(buffers), timeout_s)
    except RLightningError:
        with suppress(RLightningError):
            unlink()
        raise
    unlink()
