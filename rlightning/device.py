"""The device of a worker. This is the only file that contains "cuda"."""

from __future__ import annotations

import torch


def pick_device(num_gpus: float) -> str:
    """Return the torch device of a worker with ``num_gpus`` GPUs (a fraction is a part of a shared one)."""
    return "cuda" if num_gpus > 0 else "cpu"


def available_gpus() -> int:
    """Count the GPUs that torch sees in this process."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Environment variable that limits the devices of a process."""


def gpu_memory_gb() -> float | None:
    """Return the memory of the smallest device that torch sees, in GB; None without a device."""
    sizes = [torch.cuda.get_device_properties(index).total_memory for index in range(available_gpus())]
    return min(sizes) / 1e9 if sizes else None


def release_memory(device: str) -> None:
    """Release the memory that torch caches on a device, for other processes; no effect on the CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def replays_graphs(device: str) -> bool:
    """Whether calls on a device can be recorded and replayed as a graph of kernels."""
    return torch.device(device).type == "cuda"
