"""Losses with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rlightning.functional import losses
from rlightning.functional.schedules import anneal


def test_the_surrogate_is_clipped_only_where_that_is_pessimistic() -> None:
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    # min(1.5, 1.2) = 1.2; min(-1.5, -1.2) = -1.5; min(0.5, 0.8) = 0.5; min(-0.5, -0.8) = -0.8; mean -0.15
    assert losses.clipped_policy_loss(ratio, advantages, 0.2).item() == pytest.approx(0.15)


def test_the_gradient_of_the_surrogate_is_that_of_its_definition() -> None:
    rng = torch.Generator().manual_seed(0)
    ratio = torch.empty(1000, dtype=torch.float64).uniform_(0.5, 1.5, generator=rng).requires_grad_()
    advantages = torch.randn(1000, dtype=torch.float64, generator=rng)
    clipped = ratio.clamp(0.8, 1.2)
    defined = -torch.minimum(ratio * advantages, clipped * advantages).mean()
    loss = losses.clipped_policy_loss(ratio, advantages, 0.2)
    torch.testing.assert_close(loss, defined)
    torch.testing.assert_close(*(torch.autograd.grad(value, ratio)[0] for value in (loss, defined)))


def test_a_ratio_that_is_no_number_makes_the_surrogate_none() -> None:
    assert losses.clipped_policy_loss(torch.tensor([1.0, math.nan]), torch.tensor([1.0, -1.0]), 0.2).isnan()


def test_value_loss_with_and_without_clipping() -> None:
    values, returns, old = torch.tensor([2.0, 0.0]), torch.tensor([3.0, 1.0]), torch.tensor([0.0, 0.0])
    # (1 + 1) / 2 = 1;  clipped at 0.5: held values 0.5 and 0, errors max(1, 6.25) and max(1, 1), mean 3.625
    assert losses.value_loss(values, returns).item() == 1.0
    assert losses.value_loss(values, returns, old, clip=0.5).item() == pytest.approx(3.625)


def test_normalized_advantages_have_mean_zero_and_spread_one() -> None:
    normalized = losses.normalized(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert normalized.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert normalized.std().item() == pytest.approx(1.0, abs=1e-6)


def test_a_single_advantage_stays_as_it_is() -> None:
    assert losses.normalized(torch.tensor([3.0])).item() == 3.0


def test_equal_advantages_become_zero_and_not_nan() -> None:
    assert losses.normalized(torch.full((4,), 2.0)).tolist() == [0.0] * 4


def test_approximate_kl_is_right_on_average_and_never_negative() -> None:
    # KL(N(0,1) || N(0.1,1)) = 0.1^2 / 2 = 0.005;  log-ratio at x: 0.1 x - 0.005
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0)).double()
    log_ratio = 0.1 * x - 0.005
    assert losses.approximate_kl(log_ratio).item() == pytest.approx(0.005, rel=0.02)
    assert ((log_ratio.expm1() - log_ratio) >= 0).all()
    assert losses.approximate_kl(torch.zeros(3)).item() == 0.0


def test_clip_fraction_counts_both_sides() -> None:
    assert losses.clip_fraction(torch.tensor([0.7, 0.9, 1.1, 1.3]), 0.2).item() == 0.5


def test_explained_variance() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert losses.explained_variance(returns + 5.0, returns).item() == 1.0
    assert losses.explained_variance(torch.zeros(4), returns).item() == 0.0
    assert losses.explained_variance(-returns, returns).item() == pytest.approx(-3.0)  # 1 - Var[2R] / Var[R]
    assert losses.explained_variance(torch.ones(4), torch.full((4,), 2.0)).item() == 0.0


def test_a_linear_schedule_after_half_of_the_run_is_one_half() -> None:
    assert [anneal("linear", x) for x in (0.0, 0.5, 1.0, 1.5)] == [1.0, 0.5, 0.0, 0.0]
    assert anneal("constant", 0.7) == 1.0
    assert math.isclose(anneal("linear", 51 / 100), 0.49)
