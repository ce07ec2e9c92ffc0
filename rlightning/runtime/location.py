"""The node and the GPUs of this process."""

from __future__ import annotations

import sys


def own_location() -> tuple[str, tuple[int, ...]]:
    """Return the node and the GPUs of this process.

    Returns:
        Id of the node, "local" outside of worker processes; numbers of the GPUs, in the numbering of the node.
    """
    if "ray" in sys.modules:
        from rlightning.runtime import ray_backend

        location = ray_backend.actor_location()
        if location is not None:
            return location
    from rlightning.device import available_gpus  # imports torch, which env workers do not need

    return "local", tuple(range(available_gpus()))
