"""Who takes part in a transfer of weights, and what each must be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlightning.runtime import WorkerHandle
from rlightning.weights.bundle import Bundle, BundlePart
from rlightning.weights.version_buffer import VersionBuffer

CHANNEL = "weights"
"""Channel of eval policies on which weights come in while rollouts go on."""


class Sharer(Protocol):
    """A worker that shares memory with others of its node; see ``BasePolicy``."""

    def may_share_memory(self) -> bool:
        """Tell whether weights may come and go by memory of a node, and not just by ``send`` and ``recv_weights``."""

    def share_weight_buffer(self, parts: int = 1, copies: int = 2) -> VersionBuffer:
        """Make a buffer that all policies of this node can map.

        Args:
            parts: Parts that a version is written in.
            copies: Versions that it holds: two where those who map it act with its memory, one where they copy it.
        """

    def map_weight_buffer(self, shared_weight_buffer: VersionBuffer) -> None:
        """Map such a buffer now: a sender writes into it later, and a receiver copies out of it.

        Raises:
            WeightSyncError: If it is laid out for another network.
        """

    def unlink_weight_buffer(self) -> None:
        """Say that all have mapped the buffers made or mapped here: nothing of them is left behind when they end."""


class Sender(Sharer, Protocol):
    """A worker that has weights to give; see ``BasePolicy``."""

    def send_weights(self, receivers: Sequence[Any], shared_weight_buffer: VersionBuffer | None = None) -> Bundle | int:
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

    def send_weights_ipc(self) -> VersionBuffer:
        """Give a handle of memory that holds the weights."""

    def end_hand_over(self) -> None:
        """Make new memory for the next handle, because another receiver will get it."""


class Receiver(Sharer, Protocol):
    """A worker that acts with weights of somebody else; see ``BasePolicy``."""

    def init_weight_buffer(self, shared_weight_buffer: VersionBuffer | None = None) -> None:
        """Let weights go into a buffer first, from which an announcement puts them in force.

        Who receives acts with the buffer's memory itself: nothing is copied, unless a class has its own way of loading.

        Args:
            shared_weight_buffer: Memory that all eval policies of this node act with; None means two slots of this
                policy's own.

        Raises:
            WeightSyncError: If the shared buffer is laid out for another network.
        """

    def end_weight_buffer(self) -> None:
        """Let weights go straight in again, whatever buffer was in use."""

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

    def recv_weights_ipc(self, payload: VersionBuffer | None, part: int | None = None) -> int:
        """Take weights as ``recv_weights`` does, out of memory that a sender of this node writes into.

        Args:
            payload: The memory; None means the one that ``map_weight_buffer`` named.
            part: Which part of them is this receiver's; None means all.

        Returns:
            Their version.

        Raises:
            WeightSyncError: As ``recv_weights``, and if the sender has written others over them meanwhile.
        """

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
        by_memory: Whether they go by memory that all of them map.
    """

    sender: WorkerHandle
    receivers: tuple[WorkerHandle, ...]
    actors: tuple[WorkerHandle, ...]
    intra_node: bool
    by_memory: bool = False


def can_share(worker: Any) -> bool:
    """Ask a worker whether it shares memory; who stands in for a policy may offer the documented hooks alone."""
    return hasattr(worker, "may_share_memory") and bool(worker.may_share_memory())


def go_straight(worker: Any) -> None:
    """Have a worker do without a buffer; who stands in for a policy has none."""
    if hasattr(worker, "end_weight_buffer"):
        worker.end_weight_buffer()
