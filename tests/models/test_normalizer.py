"""Normalisers: C07's numbers, numpy as an oracle, and a slow reference for the reward scaler."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from rlightning.errors import RLightningError, ShapeError
from rlightning.models.normalizer import Moments, RewardScaler, RunningNormalizer

ROWS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(0, 20), st.just(3)),
    elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False),
)


def assert_moments_of(moments: Moments | RunningNormalizer, rows: np.ndarray) -> None:
    assert moments.count.item() == len(rows)
    if len(rows):
        exact = rows.astype(np.float64)
        np.testing.assert_allclose(moments.mean.numpy(), exact.mean(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(moments.var.numpy(), exact.var(0), rtol=1e-6, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(ROWS, min_size=1, max_size=5))
def test_batches_one_by_one_equal_numpy_over_all_rows(parts: list[np.ndarray]) -> None:
    normalizer = RunningNormalizer((3,))
    for part in parts:
        normalizer.update(torch.from_numpy(part))
    assert_moments_of(normalizer, np.concatenate(parts))


@settings(max_examples=50, deadline=None)
@given(first=ROWS, second=ROWS, third=ROWS)
def test_the_order_of_merges_does_not_matter(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> None:
    a, b, c = (Moments.of(torch.from_numpy(rows)) for rows in (first, second, third))
    everything = np.concatenate([first, second, third])
    for merged in (a.merged(b).merged(c), a.merged(b.merged(c)), c.merged(a).merged(b)):
        assert_moments_of(merged, everything)


def test_one_sample_of_1000_moves_the_mean_of_a_million_by_a_thousandth() -> None:
    normalizer = RunningNormalizer((1,))
    zeros = torch.zeros((), dtype=torch.float64)
    normalizer.merge(Moments(torch.tensor(1e6).double(), zeros.reshape(1), torch.ones(1).double()))
    normalizer.update(torch.tensor([[1000.0]]))
    assert normalizer.mean.item() == pytest.approx(1000 / 1_000_001, rel=1e-9)  # 1e-3
    assert normalizer.count.item() == 1_000_001


def test_small_spread_far_from_zero_is_not_lost() -> None:
    # mean 1e4, standard deviation 0.1: in float32 a sum of squares would drown the variance of 0.01
    rows = torch.randn(5000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.1 + 1e4
    normalizer = RunningNormalizer((1,))
    for part in rows.split(100):
        normalizer.update(part)
    assert normalizer.var.item() == pytest.approx(rows.var(correction=0).item(), rel=1e-6)


def test_training_data_come_out_with_mean_zero_and_spread_one() -> None:
    rows = torch.randn(10_000, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 0.01]) + 100.0
    normalizer = RunningNormalizer((2,))
    normalizer.update(rows)
    normalized = normalizer(rows)
    torch.testing.assert_close(normalized.mean(0), torch.zeros(2), atol=1e-2, rtol=0)
    torch.testing.assert_close(normalized.std(0), torch.ones(2), atol=1e-2, rtol=0)
    assert normalizer(torch.full((1, 2), 1e6)).tolist() == [[10.0, 10.0]]
    assert normalizer(torch.full((1, 2), -1e6)).tolist() == [[-10.0, -10.0]]


def test_before_any_data_rows_are_only_clipped() -> None:
    assert RunningNormalizer((2,))(torch.tensor([[3.0, -50.0]])).tolist() == [[3.0, -10.0]]


def test_a_feature_that_never_varied_gives_zero() -> None:
    normalizer = RunningNormalizer((1,))
    normalizer.update(torch.full((50, 1), 7.0))
    assert normalizer(torch.tensor([[7.0]])).item() == 0.0


def test_rows_that_are_not_valid_do_not_count() -> None:
    normalizer = RunningNormalizer((1,))
    normalizer.update(torch.tensor([[1.0], [math.nan], [3.0]]), torch.tensor([True, False, True]))
    assert (normalizer.count.item(), normalizer.mean.item(), normalizer.var.item()) == (2.0, 2.0, 1.0)
    before = copy.deepcopy(normalizer.state_dict())
    normalizer.update(torch.tensor([[math.nan]]), torch.tensor([False]))
    assert all(torch.equal(before[name], value) for name, value in normalizer.state_dict().items())


def test_acting_leaves_the_statistics_and_the_input_alone() -> None:
    normalizer = RunningNormalizer((2,))
    normalizer.update(torch.randn(10, 2))
    before = copy.deepcopy(normalizer.state_dict())
    rows = torch.randn(5, 2)
    kept = rows.clone()
    normalizer(rows)
    assert torch.equal(rows, kept)
    assert all(torch.equal(before[name], value) for name, value in normalizer.state_dict().items())


def test_a_copy_of_the_buffers_normalises_bit_for_bit_alike() -> None:
    rng = torch.Generator().manual_seed(0)
    learner, actor = RunningNormalizer((3,)), RunningNormalizer((3,))
    for _ in range(20):
        learner.update(torch.randn(50, 3, generator=rng) * 5 + 100)
        with torch.no_grad():
            for name, tensor in actor.state_dict().items():
                tensor.copy_(learner.state_dict()[name])  # in place, as weights travel
    rows = torch.randn(100, 3, generator=rng) * 5 + 100
    assert torch.equal(learner(rows), actor(rows))


def test_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"\[1\] for statistics of \[3\]"):
        RunningNormalizer((3,)).update(torch.zeros(5, 1))


class SlowScaler:
    """Returns and their variance one step at a time, in Python floats."""

    def __init__(self, gamma: float, envs: int) -> None:
        self.gamma, self.running, self.seen = gamma, [0.0] * envs, list[float]()

    def __call__(self, rewards: Tensor, cut: Tensor, valid: Tensor) -> np.ndarray:
        for t in range(len(rewards)):
            for n in range(rewards.shape[1]):
                if valid[t, n]:
                    self.running[n] = self.gamma * self.running[n] + float(rewards[t, n])
                    self.seen.append(self.running[n])
                if cut[t, n] or not valid[t, n]:
                    self.running[n] = 0.0
        std = math.sqrt(np.var(self.seen) + 1e-8)
        return np.where(valid.numpy(), np.clip(rewards.numpy() / std, -10, 10), 0.0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 20), gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]))
def test_the_reward_scaler_equals_a_loop_over_steps_across_rollouts(seed: int, steps: int, gamma: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    fast, slow = RewardScaler(gamma), SlowScaler(gamma, envs=3)
    for _ in range(4):
        rewards = torch.randn(steps, 3, generator=rng) + 1.0
        cut, valid = torch.rand(steps, 3, generator=rng) < 0.2, torch.rand(steps, 3, generator=rng) > 0.2
        expected = slow(rewards, cut, valid) if valid.any() or slow.seen else np.zeros((steps, 3))
        scaled = fast(rewards, cut, valid)
        np.testing.assert_allclose(scaled.numpy(), expected, rtol=1e-3, atol=1e-4)
    assert fast.count.item() == len(slow.seen)


def test_rewards_are_divided_by_the_spread_of_the_return_by_hand() -> None:
    # gamma 0.5, rewards 1, 1, then an episode end, then 2: returns 1, 1.5, 2; variance 1/6; 2 / sqrt(1/6) = 4.899
    scaler = RewardScaler(0.5)
    rewards = torch.tensor([[1.0], [1.0], [2.0]])
    cut = torch.tensor([[False], [True], [False]])
    scaled = scaler(rewards, cut, torch.ones(3, 1, dtype=torch.bool))
    assert scaler.mean.item() == pytest.approx(1.5)
    assert scaled[2].item() == pytest.approx(2.0 / math.sqrt(1 / 6), rel=1e-5)
    assert scaler.carry is not None
    assert scaler.carry.item() == 1.0  # gamma * 2, for the next step of the same episode


def test_another_number_of_envs_is_refused() -> None:
    scaler = RewardScaler(0.9)
    yes, no = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool)
    scaler(torch.zeros(2, 3), no, yes)
    with pytest.raises(ShapeError, match="3 envs"):
        scaler(torch.zeros(2, 1), no[:, :1], yes[:, :1])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_refused_and_the_statistics_stay(bad):
    normalizer = RunningNormalizer((1,))
    normalizer.update(torch.tensor([[1.0], [3.0]]))
    rows = torch.tensor([[2.0], [bad]])
    with pytest.raises(RLightningError, match="RunningNormalizer: rows with numbers that are not finite"):
        normalizer.update(rows)
    assert (normalizer.count, normalizer.mean, normalizer.var) == (2, 2, 1)
    assert normalizer(torch.tensor([[3.0]])) == 1
    normalizer.update(rows, valid=torch.tensor([True, False]))
    assert normalizer.count == 3
    scaler = RewardScaler(0.9)
    with pytest.raises(RLightningError, match="RewardScaler"):
        scaler(torch.tensor([[bad]]), torch.tensor([[False]]), torch.tensor([[True]]))
