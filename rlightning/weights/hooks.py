"""What policies must be able to do, so that weights travel between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rlightning.weights.layout import Bucket
from rlightning.weights.version_buffer import VersionBuffer

CHANNEL = "weights"
"""Channel of eval policies on which weights come in while rollouts go on."""
PORT = "_weight_port"
"""Attribute of a policy that is its ``WeightPort``."""


class Hooks(Protocol):
    """The methods of a policy by which weights travel; a class of one's own, or a test double, may write them anew."""

    def send_weights(
        self, receivers: Sequence[Any], shared_weight_buffer: VersionBuffer | None = None, bucket: int | None = None
    ) -> Bucket | int:
        """Return a copy of the weights, or write them into memory of this node and return their version.

        Args:
            receivers: Receivers of what is returned; without any, the weights just go into memory of this node.
            shared_weight_buffer: Memory to write them into as well; without receivers, None means the memory that
                ``WeightPort.map`` named, so that no handle has to travel with each push.
            bucket: Index of the bucket that is wanted; None means the whole bundle.

        Raises:
            WeightSyncError: If they do not fit the memory, which stays as it is then.
        """

    def recv_weights(self, payload: Bucket | None = None) -> int:
        """Receive weights into the buffer, or without one into force at once; return their version.

        Args:
            payload: All of them, a bucket, or a share of one; None waits for the sender of this receiver's group to
                broadcast them.

        Raises:
            WeightSyncError: See ``WeightPort.write``.
        """

    def send_weights_ipc(self) -> Any:
        """Return the weights, or a handle of memory that has them, for the policy beside this one."""

    def recv_weights_ipc(self, payload: Any, share: tuple[int, int] | None = None) -> int:
        """Receive what ``send_weights_ipc`` returned, as ``recv_weights`` does.

        Args:
            payload: What was returned; None means the memory that ``WeightPort.map`` named.
            share: Index and number of shares, where just one share of what is there is this receiver's.

        Raises:
            WeightSyncError: As in ``recv_weights``, and if the sender has written others over them meanwhile.
        """

    def init_weight_buffer(self, shared_weight_buffer: VersionBuffer | None = None) -> None:
        """Use a buffer, in which weights wait until they are announced, and whose memory the policy acts with itself.

        Args:
            shared_weight_buffer: Memory that all eval policies of this node act with; None means a buffer of its own.

        Raises:
            WeightSyncError: If the shared buffer is laid out for another network.
        """

    def notify_update_weights(self) -> None:
        """Announce new weights; without a buffer they are in force already."""

    def wait_for_weight_update_done(self, timeout: float | None = None) -> bool:
        """Wait until the latest announced weights are in force, for some seconds; return whether they are.

        Raises:
            WeightSyncError: If the last update failed. The next request raises it too.
        """
