"""The optimizer that a configuration names."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from rlightning.config import OptimConfig


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimConfig, lr: float) -> torch.optim.Optimizer:
    """Build an optimizer in its fused form: one kernel for all parameters.

    Args:
        parameters: What it updates.
        config: Which one, and its options.
        lr: Learning rate at the start.
    """
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters, lr=lr, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
        )
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(parameters, lr=lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True)
