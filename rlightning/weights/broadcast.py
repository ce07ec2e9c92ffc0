"""Buckets that a sender broadcasts in a communication group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlightning.errors import ProtocolError, WeightSyncError
from rlightning.weights.layout import Bucket, check_key

if TYPE_CHECKING:
    from rlightning.distributed import Group
    from rlightning.weights.port import WeightPort

_NOTHING_COMES = -2
"""Version that a sender broadcasts instead of a bucket that it could not read."""


def broadcast(port: WeightPort, group: Group, device: str) -> int:
    """Send all buckets to the members of a group; returns their version."""
    version = -1
    try:
        for bucket in port.buckets():
            version = bucket.version
            head = [version, bucket.layout.number, *bucket.run, bucket.layout.num_bytes]
            group.broadcast_(torch.tensor(head, device=device))
            group.broadcast_(bucket.flat.to(device))
    except BaseException:
        # The receivers wait already, and have to know that nothing comes.
        group.broadcast_(torch.tensor([_NOTHING_COMES, 0, 0, 0, 0], device=device))
        raise
    return version


def receive_broadcast(port: WeightPort, group: Group, device: str) -> int:
    """Write all buckets that are broadcast into a port; returns their version.

    What does not fit is received all the same, so that the other receivers get theirs.
    """
    if group.size < 2:
        raise ProtocolError("there is no sender to receive from: call PolicyGroup.init_comm_group first")
    layout, failure = port.layout(), None
    stop, total = 0, 1
    while stop < total:
        head = group.broadcast_(torch.zeros(5, dtype=torch.int64, device=device))
        version, number, start, stop, total = map(int, head.tolist())
        if version == _NOTHING_COMES:
            port.abandon()
            raise WeightSyncError("the sender failed before it had sent all") from failure
        fits = number == layout.number and failure is None
        filling = port.filling(layout, version, (start, stop)) if fits else None
        if filling is not None:
            with filling as memory:
                group.broadcast_(memory)
            continue
        flat = group.broadcast_(torch.zeros(stop - start, dtype=torch.uint8, device=device))
        try:
            if failure is None:
                check_key(layout, layout.key if number == layout.number else "", port.name)
                port.write(Bucket(version, layout, start, flat))
        except Exception as error:
            failure = error
    if failure is not None:
        raise failure
    return version
