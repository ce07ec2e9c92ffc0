"""The only file that says "cuda": which device a worker computes on."""

from __future__ import annotations

import torch


def pick_device(num_gpus: float) -> str:
    """Name the torch device of a worker that was granted ``num_gpus`` (a fraction means a shared one)."""
    return "cuda" if num_gpus > 0 else "cpu"


def available_gpus() -> int:
    """Count the GPUs that torch sees in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def collective_backend(device: str) -> str:
    """Name the torch.distributed backend that serves a device."""
    return "nccl" if device.startswith("cuda") else "gloo"


def synchronize(device: str) -> None:
    """Wait for the kernels of ``device``; nothing to do on the CPU."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
