"""The only file that says "cuda": which device a worker computes on."""

from __future__ import annotations

import torch


def pick_device(num_gpus: float) -> str:
    """Name the torch device of a worker that was granted ``num_gpus`` (a fraction means a shared one)."""
    return "cuda" if num_gpus > 0 else "cpu"


def available_gpus() -> int:
    """Count the GPUs that torch sees in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def release_memory(device: str) -> None:
    """Give what torch keeps for later on a device back to all processes that share it; nothing to do on the CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
