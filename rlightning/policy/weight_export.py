"""How weights leave a policy."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from rlightning.distributed import ParallelMode
from rlightning.observability.timer import Timer
from rlightning.policy.acting import Acting, Look
from rlightning.weights.bundle import Bundle, pack
from rlightning.weights.layout import check_key, copy_all
from rlightning.weights.version_buffer import VersionBuffer

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

NOTHING_COMES = -2
"""Version that a sender broadcasts instead of weights that it could not read."""


class WeightExport:
    """Gives all that acts: as a bundle, by a broadcast, or written into memory that others map.

    It knows the memory that this policy writes into.
    """

    def __init__(self, policy: BasePolicy, acting: Acting, timer: Timer) -> None:
        # Weakly: a policy and its tensors end with their last user, and do not wait for the garbage collector.
        self._policy = cast("BasePolicy", weakref.proxy(policy))
        self._acting, self._timer = acting, timer
        self._mapped: VersionBuffer | None = None  # the buffer of this node that the policy was told of
        self._handed_over: VersionBuffer | None = None  # what the policy beside this one reads from

    def bundle(self) -> Bundle:
        """Copy all that acts, with its version."""
        with self._timer.measure("export"):
            tensors, layout, home = self._look()
            if home is not None:
                return Bundle(self._policy.version, layout, home.read())
            return pack(tensors, self._policy.version, layout)

    def send(self, receivers: Sequence[Any], buffer: VersionBuffer | None) -> Bundle | int:
        """Write into a shared buffer and give a bundle; see ``BasePolicy.send_weights``."""
        if buffer is None and not receivers:
            buffer = self._mapped
        if buffer is not None:
            self._write(buffer)
        return self.bundle() if receivers else self._policy.version

    def broadcast(self) -> int:
        """Send to all members of the group of this sender; gives the version."""
        policy, group = self._policy, self._policy._communicator.group(ParallelMode.WEIGHT_TRANSFER)
        try:
            tensors, layout, _ = self._acting.look()
            flat = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=policy.device)
            copy_all(layout.views(flat), tensors)
        except BaseException:
            # The receivers wait already: tell them that nothing comes.
            group.broadcast_(torch.tensor([NOTHING_COMES, 0, 0], device=policy.device))
            raise
        with self._timer.measure("export"):
            group.broadcast_(torch.tensor([policy.version, layout.number, layout.num_bytes], device=policy.device))
            group.broadcast_(flat)
        return policy.version

    def map(self, buffer: VersionBuffer) -> None:
        """Take a buffer of this node to write into whenever somebody is sent to and nobody receives."""
        check_key(self._acting.look().layout, buffer.layout.key, self._policy._who)
        self._mapped = buffer

    def unlink_buffer(self) -> None:
        """Remove the name of the buffer that was mapped, since all have mapped it."""
        if self._mapped is not None:
            self._mapped.unlink()

    def hand_over(self) -> VersionBuffer:
        """Write into memory of one's own and give a handle of it."""
        layout = self._acting.look().layout
        if self._handed_over is None or self._handed_over.layout.key != layout.key:
            self._handed_over = VersionBuffer.create_shared(layout, copies=1)
        self._write(self._handed_over)
        return self._handed_over

    def end_hand_over(self) -> None:
        """Make new memory for the next handle, because another policy will get it."""
        if self._handed_over is not None:
            self._handed_over.unlink()  # who was to map it may be gone
        self._handed_over = None

    def _look(self) -> Look:
        # A learner is asked between two training steps, when nobody is at work on its tensors; an eval policy may act.
        return self._acting.look(may_move=self._policy.role_type == "train")

    def _write(self, buffer: VersionBuffer) -> None:
        tensors, layout, home = self._look()
        check_key(layout, buffer.layout.key, self._policy._who)
        with self._timer.measure("export"):
            if home is not None:
                buffer.write_bytes(self._policy.version, home.flat)
            else:
                buffer.write(self._policy.version, tensors)
