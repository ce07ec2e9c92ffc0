"""Which workers take part in a transfer of weights, and what each must be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlightning.runtime import WorkerHandle
from rlightning.weights.layout import Bucket
from rlightning.weights.version_buffer import VersionBuffer

CHANNEL = "weights"
"""Channel of eval policies on which weights come in while rollouts go on."""
PORT = "_weight_port"
"""Attribute of a policy that is its ``WeightPort``."""


class Sender(Protocol):
    """A worker that has weights to give; see ``BasePolicy``."""

    def send_weights(
        self, receivers: Sequence[Any], shared_weight_buffer: VersionBuffer | None = None, bucket: int | None = None
    ) -> Bucket | int:
        """Return the weights, or write them into memory of this node.

        Args:
            receivers: Receivers of what is returned; without any, the weights just go into the shared buffer.
            shared_weight_buffer: Memory of this node to write them into as well; without receivers, None means the
                memory that ``WeightPort.map`` named, so that no handle has to travel with each push.
            bucket: Index of the bucket that is wanted; None means the whole bundle.

        Returns:
            A copy of what was asked for, or just its version where nothing is to be received.

        Raises:
            WeightSyncError: If they do not fit the shared buffer, which stays as it is then.
        """

    def send_weights_ipc(self) -> Any:
        """Return the weights, or a handle of memory that has them, for the policy beside this one."""


class Receiver(Protocol):
    """A worker that acts with weights of another one; see ``BasePolicy``."""

    def init_weight_buffer(self, shared_weight_buffer: VersionBuffer | None = None) -> None:
        """Let weights go into a buffer first, from which an announcement puts them in force.

        The receiver acts with the memory of the buffer itself: nothing is copied, unless a class has its own way of
        loading.

        Args:
            shared_weight_buffer: Memory that all eval policies of this node act with; None means a buffer of this
                policy's own.

        Raises:
            WeightSyncError: If the shared buffer is laid out for another network.
        """

    def recv_weights(self, payload: Bucket | None = None) -> int:
        """Take weights: into the buffer, in force with the next update; without a buffer in force at once.

        Args:
            payload: All of them, a bucket, or a share of one; None waits for the sender of this receiver's group to
                broadcast them.

        Returns:
            Their version.

        Raises:
            WeightSyncError: If they do not fit, or are to be in force at once and are older than those that are; see
                ``WeightPort.write``.
        """

    def recv_weights_ipc(self, payload: Any, share: tuple[int, int] | None = None) -> int:
        """Take weights as ``recv_weights`` does, out of memory of this node.

        Args:
            payload: What ``send_weights_ipc`` returned; None means the memory that ``WeightPort.map`` named.
            share: Index and number of shares, where just one share of what is there is this receiver's.

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
        receivers: The policies that receive there, on behalf of all actors of the node.
        actors: All eval policies of the node.
        intra_node: Whether it is the sender's own node.
        by_memory: Whether they go by memory that all of them map.
    """

    sender: WorkerHandle
    receivers: tuple[WorkerHandle, ...]
    actors: tuple[WorkerHandle, ...]
    intra_node: bool
    by_memory: bool = False
