"""Running normalisation of observations and rewards, with the statistics as buffers of a module.

Only the learner updates statistics, from batches of training data. They are constants in every other process that loads
the module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rlightning.errors import RLightningError, ShapeError
from rlightning.functional.advantages import discounted_sums

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of a number of rows, in float64.

    Attributes:
        count: Number of rows, a scalar.
        mean: Mean of each feature, [...].
        var: Population variance of each feature (divided by the count), [...].
    """

    count: Tensor
    mean: Tensor
    var: Tensor

    @classmethod
    def of(cls, rows: Tensor, valid: Tensor | None = None) -> Moments:
        """Compute the moments along axis 0.

        Args:
            rows: [B, ...].
            valid: True in rows that count, [B] bool; None means all. Without such rows, the count is 0.
        """
        rows = (rows if valid is None else rows[valid]).to(torch.float64)
        count = torch.tensor(float(len(rows)), dtype=torch.float64, device=rows.device)
        if len(rows) == 0:
            return cls(count, torch.zeros_like(rows.sum(0)), torch.zeros_like(rows.sum(0)))
        var, mean = torch.var_mean(rows, dim=0, correction=0)
        return cls(count, mean, var)

    def merged(self, other: Moments) -> Moments:
        """Return the moments of the rows of both (Chan, Golub & LeVeque 1979)."""
        count = self.count + other.count
        weight = torch.where(count > 0, other.count / count.clamp(min=1.0), 0.0)
        delta = other.mean - self.mean
        mean = self.mean + delta * weight
        var = self.var + (other.var - self.var) * weight + delta.square() * weight * (1.0 - weight)
        return Moments(count, mean, var)


class _RunningMoments(nn.Module):
    """Moments of all rows seen, as float64 buffers."""

    count: Tensor
    mean: Tensor
    var: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(tuple(shape), dtype=torch.float64))
        self.register_buffer("var", torch.ones(tuple(shape), dtype=torch.float64))

    @torch.no_grad()
    def merge(self, moments: Moments) -> None:
        """Add the moments of further rows.

        Raises:
            RLightningError: If they are not finite: one such row would spoil the statistics permanently.
        """
        merged = Moments(self.count, self.mean, self.var).merged(moments)
        if not (merged.mean.isfinite() & merged.var.isfinite()).all():
            raise RLightningError(
                f"{type(self).__name__}: rows with numbers that are not finite, or whose squares are not, cannot be "
                f"learned from; leave them out by the argument valid"
            )
        self.count.copy_(merged.count)
        self.mean.copy_(merged.mean)
        self.var.copy_(merged.var)


class RunningNormalizer(_RunningMoments):
    """Shift and scale features to mean 0 and variance 1 over all training data so far, clipped.

    The float32 shift and scale of the forward pass are buffers, computed whenever the float64 statistics change. A copy
    of the buffers therefore normalises identically, bit for bit.

    Args:
        shape: Shape of one row, such as (17,).
        clip: Largest magnitude of the output.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, shape: Sequence[int], clip: float = 10.0) -> None:
        super().__init__(shape)
        self.clip = clip
        self.register_buffer("shift", torch.zeros(tuple(shape)))
        self.register_buffer("scale", torch.ones(tuple(shape)))

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise rows, [B, ...] float32, without updating the statistics."""
        return ((rows - self.shift) * self.scale).clamp_(-self.clip, self.clip)

    @torch.no_grad()
    def merge(self, moments: Moments) -> None:
        super().merge(moments)
        if moments.count > 0:
            self.shift.copy_(self.mean)
            self.scale.copy_((self.var + _EPSILON).rsqrt())

    def update(self, rows: Tensor, valid: Tensor | None = None) -> None:
        """Update the statistics from a batch.

        Args:
            rows: [B, ...].
            valid: True in rows that count, [B] bool; None means all.

        Raises:
            ShapeError: If the rows have another shape than the statistics.
            RLightningError: If a row that counts is not finite.
        """
        if rows.shape[1:] != self.mean.shape:
            raise ShapeError(f"rows of shape {list(rows.shape[1:])} for statistics of {list(self.mean.shape)}")
        self.merge(Moments.of(rows, valid))


class RewardScaler(_RunningMoments):
    """Divide rewards by the running standard deviation of the discounted return, clipped.

    The return of each env continues from rollout to rollout and starts at 0 with each episode. It looks backwards
    (R_t = gamma R_{t-1} + r_t), so that it is known at each step; its spread is that of the forward return. Rewards are
    not centred: that would change which policy is best. (Engstrom et al. 2020, section 3.)

    Args:
        gamma: Discount per step, in [0, 1].
        clip: Largest magnitude of the output.

    Attributes:
        carry: gamma times the return that the next step of each env continues, [N]; None before the first batch. A
            resumed run needs it and acting does not, so it is not a buffer.
    """

    def __init__(self, gamma: float, clip: float = 10.0) -> None:
        super().__init__(())
        self.gamma, self.clip = gamma, clip
        self.carry: Tensor | None = None

    @torch.no_grad()
    def forward(
        self, rewards: Tensor, cut: Tensor, valid: Tensor, over_all: Callable[[Moments], Moments] | None = None
    ) -> Tensor:
        """Update the statistics from a rollout, then scale its rewards.

        Args:
            rewards: [T, N].
            cut: True where an episode ended, [T, N] bool.
            valid: False where there is no reward, [T, N] bool; such rows end an episode as well.
            over_all: Merges the moments of these returns with those of the other learners, if there are several.

        Returns:
            The scaled rewards, [T, N]; 0 in rows that are not valid.

        Raises:
            ShapeError: If the shapes differ, or the number of envs changed between rollouts.
            RLightningError: If a reward is not finite, or a return overflows.
        """
        if self.carry is None:
            self.carry = rewards.new_zeros(rewards.shape[1:])
        if not rewards.shape == cut.shape == valid.shape or rewards.shape[1:] != self.carry.shape:
            shapes = ", ".join(str(list(x.shape)) for x in (rewards, cut, valid))
            raise ShapeError(f"rewards, cut, valid of {shapes} with returns carried for {len(self.carry)} envs; "
                             "all must be [T, N] with the same N in every rollout")  # fmt: skip
        rewards = rewards.masked_fill(~valid, 0.0)
        factors = self.gamma * (valid & ~cut).to(rewards.dtype)
        # The recurrence runs forward in time: solve it on the reversed rows, where t-1 is the next row.
        entering = torch.cat([torch.ones_like(factors[:1]), factors[:-1]])
        terms = rewards.clone()
        terms[:1] += self.carry
        returns = discounted_sums(terms.flip(0), entering.flip(0)).flip(0)
        if len(returns):
            self.carry = returns[-1] * factors[-1]
        moments = Moments.of(returns[valid])
        self.merge(moments if over_all is None else over_all(moments))
        return (rewards / (self.var + _EPSILON).sqrt().to(rewards.dtype)).clamp_(-self.clip, self.clip)
