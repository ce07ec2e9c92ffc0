"""Optimizers by name, and gradient clipping with torch's own as an oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rlightning.algorithms.optimizers import clip_grad_norm, make_optimizer
from rlightning.config import OptimConfig


def parameters(scale: float) -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((3, 2), (3,), ())]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=rng) * scale
    return [*made, nn.Parameter(torch.zeros(2))]  # the last one has no gradient


@pytest.mark.parametrize("scale", [0.01, 10.0])
@pytest.mark.parametrize("max_norm", [0.5, float("inf")])
def test_clipping_agrees_with_torch(scale: float, max_norm: float) -> None:
    ours, theirs = parameters(scale), parameters(scale)
    norm = clip_grad_norm(ours, max_norm)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, max_norm))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, torch.optim.Adam),
        ({"name": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
        ({"name": "sgd", "momentum": 0.9}, torch.optim.SGD),
    ],
)
def test_the_named_optimizer_with_its_options(options: dict[str, Any], kind: type[torch.optim.Optimizer]) -> None:
    parameter = nn.Parameter(torch.ones(1))
    config = OptimConfig(**options)
    optimizer = make_optimizer([parameter], config, lr=0.01)
    assert type(optimizer) is kind
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.01, config.weight_decay)
    assert group.get("eps", 1e-5) == 1e-5
    assert group.get("momentum", 0.9) == 0.9
    parameter.grad = torch.ones(1)
    optimizer.step()
    # sgd: 1 - 0.01; adam: nearly the same in its first step; adamw: 1 * (1 - 0.01 * 0.1) - 0.01
    assert parameter.item() == pytest.approx(0.99 - 0.01 * config.weight_decay, abs=1e-5)
