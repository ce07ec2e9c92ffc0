"""Optimizers by name, and gradient clipping with torch's own as an oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from rlightning.algorithms.optimizers import LeanAdam, clip_grad_norm, make_optimizer
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
    ("options", "oracle"),
    [
        ({}, torch.optim.Adam),
        ({"weight_decay": 0.1, "betas": (0.8, 0.99), "eps": 1e-3}, torch.optim.Adam),
        ({"name": "adamw", "weight_decay": 0.1}, torch.optim.AdamW),
        ({"name": "sgd", "momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD),
    ],
)
def test_the_named_optimizer_updates_as_torch_does(options: dict[str, Any], oracle: Any) -> None:
    ours, theirs = parameters(1.0), parameters(1.0)
    config = OptimConfig(**options)
    optimizer = make_optimizer(ours, config, lr=0.01)
    own = {"momentum": config.momentum} if config.name == "sgd" else {"betas": config.betas, "eps": config.eps}
    reference = oracle(theirs, lr=0.01, weight_decay=config.weight_decay, **own)
    for step in range(5):
        for group in (*optimizer.param_groups, *reference.param_groups):
            group["lr"] = 0.01 / (step + 1)
        optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert not ours[-1].any()  # no gradient, no step


def test_states_can_be_exchanged_with_torch() -> None:
    ours, theirs = parameters(1.0), parameters(1.0)
    ours_optimizer, theirs_optimizer = LeanAdam(ours, lr=0.01), torch.optim.Adam(theirs, lr=0.01, fused=True)
    for _ in range(2):
        ours_optimizer.step()
        theirs_optimizer.step()
    state = ours_optimizer.state_dict()
    ours_optimizer.load_state_dict(theirs_optimizer.state_dict())
    theirs_optimizer.load_state_dict(state)
    ours_optimizer.step()
    theirs_optimizer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_a_parameter_that_stands_still_for_a_step_is_behind_from_then_on() -> None:
    ours, theirs = parameters(1.0)[:3], parameters(1.0)[:3]
    optimizer, reference = LeanAdam(ours, lr=0.01), torch.optim.Adam(theirs, lr=0.01, fused=True)
    for step in range(4):
        for held, stepper in ((ours, optimizer), (theirs, reference)):
            kept, held[0].grad = held[0].grad, None if step == 1 else held[0].grad
            stepper.step()
            held[0].grad = kept
    assert [float(optimizer.state[parameter]["step"]) for parameter in ours] == [3.0, 4.0, 4.0]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_are_forgotten_or_zeroed() -> None:
    held = parameters(1.0)
    optimizer = LeanAdam(held, lr=0.01)
    optimizer.zero_grad(set_to_none=False)
    assert held[-1].grad is None
    assert not any(parameter.grad.any() for parameter in held[:-1])
    optimizer.zero_grad()
    assert [parameter.grad for parameter in held] == [None] * 4


def test_a_closure_is_refused() -> None:
    with pytest.raises(ValueError, match="no closure"):
        LeanAdam(parameters(1.0), lr=0.01).step(lambda: 0.0)
