"""The only file that says "cuda": which device a worker computes on."""

from __future__ import annotations

import torch


def pick_device(num_gpus: float) -> str:
    """Name the torch device of a worker that was granted ``num_gpus`` (a fraction means a shared one)."""
    return "cuda" if num_gpus > 0 else "cpu"


def available_gpus() -> int:
    """Count the GPUs that torch sees in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Variable of the environment that narrows which devices a process may use."""


def gpu_memory_gb() -> float | None:
    """Give the memory of the smallest device that torch sees, in GB; None where there is none."""
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in range(available_gpus())]
    return min(sizes) / 1e9 if sizes else None


def release_memory(device: str) -> None:
    """Give what torch keeps for later on a device back to all processes that share it; nothing to do on the CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def replays_graphs(device: str) -> bool:
    """Tell whether calls on a device can be recorded and replayed as a graph of kernels."""
    return torch.device(device).type == "cuda"
