"""Losses of policy-gradient methods and diagnostics of an update.

All arguments are over rows: [B]. ``log_ratio`` is log pi_new(a|s) - log pi_old(a|s).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- torch's own customary name


def clipped_policy_loss(ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """Clipped surrogate of PPO (Schulman et al. 2017, eq. 7), negated: smaller is better.

    Args:
        ratio: pi_new(a|s) / pi_old(a|s), [B].
        advantages: [B].
        clip_range: Largest change of the ratio from 1 that reduces the loss.

    Returns:
        Mean over the rows, a scalar.
    """
    # min(r A, clip(r) A) = A min(r, 1 + eps) where A >= 0, and A max(r, 1 - eps) where A < 0: half as many operations.
    gains = advantages >= 0.0
    low = torch.where(gains, -torch.inf, 1.0 - clip_range)
    high = torch.where(gains, 1.0 + clip_range, torch.inf)
    return torch.dot(advantages, ratio.clamp(low, high)) / -len(ratio)


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None = None, clip: float | None = None) -> Tensor:
    """Mean squared error of the values, optionally with PPO's clipping.

    With clipping, the larger one of two errors counts: that of the value, and that of the value within ``clip`` of
    ``old_values`` (from OpenAI Baselines, ppo2).

    Args:
        values: V(s) now, [B].
        returns: Targets of V(s), [B].
        old_values: V(s) before the update, [B]; needed with ``clip``.
        clip: Largest change of a value that reduces its error, in units of the return; None means no clipping.

    Returns:
        Mean over the rows, a scalar. There is no factor one half.
    """
    if clip is None or old_values is None:
        return F.mse_loss(values, returns)
    held = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum((values - returns).square(), (held - returns).square()).mean()


def normalized(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1, [B]; a single row is returned as it is.

    One row has no spread: its normalised value would be 0/0 or, without the mean, nothing but a sign.
    """
    if advantages.numel() < 2:
        return advantages
    std, mean = torch.std_mean(advantages)
    return (advantages - mean) / (std + 1e-8)


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Estimate KL(old || new) from samples of the old policy: mean of (r - 1) - log r, never negative.

    Source: Schulman, "Approximating KL divergence" (2020), estimator k3.
    """
    return (torch.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(ratio: Tensor, clip_range: float) -> Tensor:
    """Part of the rows whose ratio is further than ``clip_range`` from 1, a scalar in [0, 1]."""
    return ((ratio - 1.0).abs() > clip_range).to(ratio.dtype).mean()


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Part of the variance of the returns that the values explain: 1 is perfect, 0 no better than a constant.

    Returns:
        A scalar, at most 1; 0 where the returns do not vary.
    """
    spread = returns.var(correction=0)
    unexplained = (returns - values).var(correction=0)
    return torch.where(spread > 0, 1.0 - unexplained / spread, torch.zeros_like(spread))
