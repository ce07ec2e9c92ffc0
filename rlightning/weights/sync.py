"""Ways to bring weights from the learners to those who act, by ``policy.weight_buffer.buffer_strategy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from rlightning.errors import CallTimeout, RLightningError, WeightSyncError, WorkerError
from rlightning.runtime import FastChannel, Future, WorkerHandle, gather, open_channels, wait
from rlightning.weights.carriers import Carry, NewBuffer, NodeMemory, make_buffers
from rlightning.weights.delivery import CHANNEL, Delivery, Receiver, Sender, go_straight

_REPORT_S = 10.0
"""Seconds that it may take to find out how the process of an eval policy ended."""


class WeightSync(Protocol):
    """Brings the weights of learners to eval policies; ``prepare`` comes first, and again when policies come or go.

    Attributes:
        is_direct: Whether weights are in force when they are sent, so that nothing has to be waited for.
    """

    is_direct: bool

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

    Args:
        deliveries: Who sends to whom.
        carry: Brings those that do not go by memory of a node.
    """

    is_direct = True

    def __init__(self, deliveries: Sequence[Delivery], carry: Carry) -> None:
        self._deliveries, self._carry = list(deliveries), carry
        self._near = NodeMemory([delivery for delivery in deliveries if delivery.by_memory])
        self._far = [delivery for delivery in deliveries if delivery.receivers and not delivery.by_memory]

    def prepare(self, timeout_s: float | None) -> None:
        # By another way there may have been buffers, from which nobody would put anything in force now.
        gather([actor.run(go_straight) for delivery in self._deliveries for actor in delivery.actors], timeout_s)
        self._near.prepare(timeout_s)

    def send(self, timeout_s: float | None) -> int:
        written = self._near.write()
        carried = self._carry(self._far, timeout_s)
        return _same_version([*carried, *self._near.read(written, timeout_s)])

    def announce(self, timeout_s: float | None) -> None:
        """Nothing to tell."""

    def wait(self, timeout_s: float | None) -> list[str]:
        """Nothing to wait for."""
        return []


class ColocatedSync(DirectSync):
    """From each learner into the eval policy beside it, by a handle of the memory and not by the bytes."""

    def prepare(self, timeout_s: float | None) -> None:
        super().prepare(timeout_s)
        self._end_hand_over(timeout_s)

    def send(self, timeout_s: float | None) -> int:
        try:
            return self._hand_over(timeout_s)
        except RLightningError:
            with suppress(RLightningError):
                self._end_hand_over(timeout_s)  # nobody may have come for the memory
            raise

    def _end_hand_over(self, timeout_s: float | None) -> None:
        gather([delivery.sender.call(Sender.end_hand_over) for delivery in self._deliveries], timeout_s)

    def _hand_over(self, timeout_s: float | None) -> int:
        calls = [
            receiver.channel(CHANNEL).call(Receiver.recv_weights_ipc, delivery.sender.call(Sender.send_weights_ipc))
            for delivery in self._deliveries
            for receiver in delivery.receivers
        ]
        return _same_version(gather(calls, timeout_s))


class DoubleSync(DirectSync):
    """Two slots per eval policy ("Double"): new weights come in while rollouts go on, and pointers are exchanged."""

    is_direct = False

    def __init__(self, deliveries: Sequence[Delivery], carry: Carry) -> None:
        super().__init__(deliveries, carry)
        self._actors = [actor for delivery in deliveries for actor in delivery.actors]
        self._channels: list[FastChannel] = []
        self._announcing: list[Future[None]] = []

    def prepare(self, timeout_s: float | None) -> None:
        self._near.prepare(timeout_s)
        gather([actor.call(Receiver.init_weight_buffer) for actor in self._actors], timeout_s)
        self._channels = open_channels(self._actors, CHANNEL, timeout_s)

    def announce(self, timeout_s: float | None) -> None:
        # Whether they heard of it is asked together with whether they have done it, which saves a round of calls.
        self._announcing += [channel.call(Receiver.notify_update_weights) for channel in self._channels]

    def wait(self, timeout_s: float | None) -> list[str]:
        asked = [channel.call(Receiver.wait_for_weight_update_done, timeout_s) for channel in self._channels]
        futures: list[Future[Any]] = [*self._announcing, *asked]
        try:
            # All must have answered before a failure of one is raised: then nobody acts with the older of two slots.
            wait(futures, len(futures), timeout_s)
        except CallTimeout:
            return [
                channel.name for channel, answer in zip(self._channels, asked, strict=True) if not _is_in_force(answer)
            ]
        announcing, self._announcing = self._announcing, []
        gather(announcing, _REPORT_S)
        return [
            channel.name for channel, done in zip(self._channels, gather(asked, _REPORT_S), strict=True) if not done
        ]


class SharedSync(DoubleSync):
    """Two slots per node ("Shared"): all eval policies of a node act with the same memory.

    A learner of the node writes into it itself, so that a push costs one copy however many act; to other nodes the
    weights travel once, and the first eval policy there writes them.
    """

    def __init__(self, deliveries: Sequence[Delivery], carry: Carry) -> None:
        super().__init__(deliveries, carry)
        self._writers: list[FastChannel] = []  # to the learners that write into the memory of their own node

    def prepare(self, timeout_s: float | None) -> None:
        self._near.prepare(timeout_s)

        wanted = []
        for one in self._deliveries:
            maps: list[tuple[WorkerHandle, Any]] = [(actor, Receiver.init_weight_buffer) for actor in one.actors]
            if not one.receivers:
                maps.append((one.sender, Sender.map_weight_buffer))
            wanted.append(NewBuffer(one.actors[0], maps, self._parts(one), 2))
        make_buffers(wanted, timeout_s)
        self._channels = open_channels(self._actors, CHANNEL, timeout_s)
        self._writers = open_channels([one.sender for one in self._deliveries if not one.receivers], CHANNEL, timeout_s)

    def send(self, timeout_s: float | None) -> int:
        # By a channel too: whoever pushes has waited for what it asked of the learners before.
        written: list[Future[Any]] = [channel.call(Sender.send_weights, ()) for channel in self._writers]
        carried = self._carry(self._far, timeout_s)
        return _same_version([*gather(written, timeout_s), *carried])

    def _parts(self, delivery: Delivery) -> int:
        return 1


class ShardedSync(SharedSync):
    """Two slots per node, written in parts ("Sharded"): each eval policy of a node receives one part of the bytes."""

    def send(self, timeout_s: float | None) -> int:
        written = self._near.write()
        calls: list[Future[Any]] = []
        for delivery in self._far:
            count = len(delivery.receivers)
            if count == 1:
                parts = [delivery.sender.call(Sender.send_weights, ("all",))]
            else:
                parts = delivery.sender.call_split(count, Sender.send_weight_parts, count)
            for receiver, part in zip(delivery.receivers, parts, strict=True):
                calls.append(receiver.channel(CHANNEL).call(Receiver.recv_weights, part))
        return _same_version([*gather(calls, timeout_s), *self._near.read(written, timeout_s, in_parts=True)])

    def _parts(self, delivery: Delivery) -> int:
        return len(delivery.receivers)


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
