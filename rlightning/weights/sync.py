"""Ways to bring a bundle from a learner to those who act, by ``policy.weight_buffer.buffer_strategy``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rlightning.errors import WeightSyncError
from rlightning.runtime import WorkerHandle, gather
from rlightning.weights.bundle import Bundle


class Sender(Protocol):
    """A worker that has weights to give."""

    def export_bundle(self) -> Bundle:
        """Copy all that acts, with its version."""


class Receiver(Protocol):
    """A worker that acts with weights of somebody else."""

    def import_bundle(self, bundle: Bundle) -> int:
        """Put a bundle in force between two requests; returns its version."""


class WeightSync(Protocol):
    """Brings the weights of one sender to receivers."""

    def push(self, sender: WorkerHandle, receivers: Sequence[WorkerHandle], timeout_s: float | None) -> int | None:
        """Send.

        Args:
            sender: The learner.
            receivers: The eval policies.
            timeout_s: Seconds that it may take; None is no limit.

        Returns:
            The version that every receiver has; None without receivers.

        Raises:
            WorkerError: If a receiver refused; its cause says why.
            WeightSyncError: If receivers ended up with different versions.
        """


class DirectSync:
    """Straight in: the weights are in force everywhere when the call returns.

    The bundle is handed on unopened: by hand within a process, by Ray's object store elsewhere, where it is stored once
    per node however many receivers are there.
    """

    def push(self, sender: WorkerHandle, receivers: Sequence[WorkerHandle], timeout_s: float | None) -> int | None:
        bundle = sender.call(Sender.export_bundle)
        versions = gather([receiver.call(Receiver.import_bundle, bundle) for receiver in receivers], timeout_s)
        if len(set(versions)) > 1:
            raise WeightSyncError(f"one push left different versions in force: {versions}")
        return versions[0] if versions else None


WEIGHT_SYNCS: dict[str, Callable[[], WeightSync]] = {"None": DirectSync}
"""Ways by name."""
