"""Where this process is."""

from __future__ import annotations

import sys


def own_place() -> tuple[str, tuple[int, ...]]:
    """Give the node and the GPUs of this process.

    Returns:
        Id of the node, "local" where this is no worker process; numbers of the GPUs, in the numbering of the node.
    """
    if "ray" in sys.modules:
        from rlightning.runtime import ray_backend

        place = ray_backend.actor_place()
        if place is not None:
            return place
    from rlightning.device import available_gpus  # imports torch, which not every worker needs

    return "local", tuple(range(available_gpus()))
