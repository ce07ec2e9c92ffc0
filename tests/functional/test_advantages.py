"""Advantages and returns: C01 and the equations that they come from."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlightning.errors import ShapeError
from rlightning.functional.advantages import discounted_returns, discounted_sums, gae


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def slow_gae(r: Tensor, v: Tensor, v_next: Tensor, terminated: Tensor, cut: Tensor, gamma: float, lam: float) -> Tensor:
    """The recursion of the paper, one row and one env at a time, in Python floats."""
    advantages = torch.zeros_like(r)
    for n in range(r.shape[1]):
        later = 0.0
        for t in reversed(range(r.shape[0])):
            bootstrap = 0.0 if terminated[t, n] else float(v_next[t, n])
            delta = float(r[t, n]) + gamma * bootstrap - float(v[t, n])
            later = delta + (0.0 if cut[t, n] else gamma * lam * later)
            advantages[t, n] = later
    return advantages


# The third row is the first step of an unrelated episode: V = 77, r = 100.
REWARDS, VALUES = column(1.0, 1.0, 100.0), column(0.5, 0.5, 77.0)
NEXT_VALUES = column(0.5, 10.0, 5.0)


def test_a_truncated_step_bootstraps_from_its_final_observation() -> None:
    # delta_1 = 1 + 0.99 * 10 - 0.5 = 10.4;  delta_0 = 1 + 0.99 * 0.5 - 0.5 = 0.995
    # A_0 = 0.995 + 0.99 * 0.95 * 10.4 = 10.7762
    advantages = gae(REWARDS, VALUES, NEXT_VALUES, flags(0, 0, 0), flags(0, 1, 0), gamma=0.99, lam=0.95)
    torch.testing.assert_close(advantages[:2], column(10.7762, 10.4), atol=1e-5, rtol=0)


def test_a_terminated_step_has_no_future() -> None:
    # delta_1 = 1 - 0.5 = 0.5;  A_0 = 0.995 + 0.9405 * 0.5 = 1.46525
    advantages = gae(REWARDS, VALUES, NEXT_VALUES, flags(0, 1, 0), flags(0, 1, 0), gamma=0.99, lam=0.95)
    torch.testing.assert_close(advantages[:2], column(1.46525, 0.5), atol=1e-5, rtol=0)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_nothing_crosses_a_cut(poison: float) -> None:
    rewards, values = column(1.0, 1.0, poison), column(0.5, 0.5, poison)
    next_values = column(0.5, poison, poison)
    advantages = gae(rewards, values, next_values, flags(0, 1, 0), flags(0, 1, 0), gamma=0.99, lam=0.95)
    torch.testing.assert_close(advantages[:2], column(1.46525, 0.5), atol=1e-5, rtol=0)


def test_the_return_of_a_truncated_step_is_the_value_of_its_final_observation() -> None:
    # V(obs) = 3, V(final obs) = 7, r = 0, gamma = 1: the return A + V is 7, not 3
    value, final = column(3.0), column(7.0)
    advantages = gae(column(0.0), value, final, flags(0), flags(1), gamma=1.0, lam=0.95)
    assert (advantages + value).item() == 7.0
    assert discounted_returns(column(0.0), final, flags(0), flags(1), gamma=1.0).item() == 7.0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 40),
    envs=st.integers(1, 3),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    lam=st.sampled_from([0.0, 0.8, 0.95, 1.0]),
)
def test_the_scan_equals_the_recursion(seed: int, steps: int, envs: int, gamma: float, lam: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    r, v, v_next = (torch.randn(steps, envs, generator=rng) for _ in range(3))
    terminated, truncated = (torch.rand(steps, envs, generator=rng) < 0.15 for _ in range(2))
    cut = terminated | truncated
    fast = gae(r, v, v_next, terminated, cut, gamma=gamma, lam=lam)
    torch.testing.assert_close(fast, slow_gae(r, v, v_next, terminated, cut, gamma, lam), atol=1e-4, rtol=1e-5)


def test_returns_are_gae_with_lambda_one_on_values_of_zero() -> None:
    rng = torch.Generator().manual_seed(3)
    r, v_next = torch.randn(30, 2, generator=rng), torch.randn(30, 2, generator=rng)
    terminated, truncated = torch.rand(30, 2, generator=rng) < 0.1, torch.rand(30, 2, generator=rng) < 0.1
    cut = terminated | truncated
    closing = cut.clone()
    closing[-1] = True
    bootstraps = v_next.masked_fill(~closing, 0.0)
    expected = slow_gae(r, torch.zeros_like(r), bootstraps, terminated, cut, 0.9, 1.0)
    torch.testing.assert_close(discounted_returns(r, v_next, terminated, cut, gamma=0.9), expected)


def test_sums_leave_their_arguments_alone() -> None:
    terms, factors = column(1.0, 2.0, 4.0), column(0.5, 0.5, 0.5)
    # s_2 = 4, s_1 = 2 + 0.5 * 4 = 4, s_0 = 1 + 0.5 * 4 = 3
    assert discounted_sums(terms, factors).flatten().tolist() == [3.0, 4.0, 4.0]
    assert terms.flatten().tolist() == [1.0, 2.0, 4.0]
    assert factors.flatten().tolist() == [0.5, 0.5, 0.5]


def test_shapes_that_would_broadcast_are_refused() -> None:
    block, row, no = torch.zeros(4, 2), torch.zeros(4), torch.zeros(4, 2, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"values \[4\]"):
        gae(block, row, block, no, no, gamma=0.99, lam=0.95)
    with pytest.raises(ShapeError, match=r"next_values \[4\]"):
        discounted_returns(block, row, no, no, gamma=0.99)
    with pytest.raises(ShapeError, match="scalars"):
        discounted_sums(torch.tensor(1.0), torch.tensor(1.0))
