"""Distributions over actions, faster than those of ``torch.distributions``.

Rows are axis 0: B rows, A action dimensions. All random numbers come from the generator of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- torch's own customary name

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_LOG_2 = math.log(2.0)
_QUADRATURE_NODES = 24


class Distribution(Protocol):
    """One distribution per row."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw one action per row."""
        ...

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw one action per row; return also their log-probs, [B], which takes less time than ``log_prob``."""
        ...

    def mode(self) -> Tensor:
        """Most probable action of each row."""
        ...

    def log_prob(self, action: Tensor) -> Tensor:
        """Log of the probability (or of its density) of each row's action, [B]."""
        ...

    def entropy(self) -> Tensor:
        """Entropy of each row in nats, [B]."""
        ...


class DiagonalGaussian:
    """Independent normal distributions, in the unit of ``mean``.

    Args:
        mean: [B, A].
        log_std: Log of the standard deviation, [A] or [B, A].
    """

    __slots__ = ("log_std", "mean", "std")

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std, self.std = mean, log_std, log_std.exp()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.addcmul(self.mean, self._noise(generator), self.std)

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        noise = self._noise(generator)
        return torch.addcmul(self.mean, noise, self.std), self._log_prob_of_noise(noise)

    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        return self._log_prob_of_noise((action - self.mean) / self.std)

    def _noise(self, generator: torch.Generator | None) -> Tensor:
        return torch.empty_like(self.mean).normal_(generator=generator)

    def _log_prob_of_noise(self, noise: Tensor) -> Tensor:
        # sum over A of -z^2 / 2 - log std - log(2 pi) / 2; the operator of a number minus a tensor is slower
        squares = torch.addcmul(self.log_std, noise, noise, value=0.5).sum(-1)
        return torch.rsub(squares, -noise.shape[-1] * _HALF_LOG_2PI)

    def entropy(self) -> Tensor:
        # sum over A of log std + (1 + log(2 pi)) / 2
        entropy = self.log_std.sum(-1) + self.mean.shape[-1] * (0.5 + _HALF_LOG_2PI)
        return entropy.expand(self.mean.shape[:-1])


class SquashedGaussian(DiagonalGaussian):
    """A normal distribution squashed by tanh: its values lie in (-1, 1).

    Actions are passed and returned **before** the squashing, as u, because u cannot be recovered from tanh(u) near the
    bounds; ``squash`` returns tanh(u). Log-probs and entropies are those of tanh(u), in the unit where the bounds are
    -1 and 1; ``log_prob_in_units`` returns them in other units.
    """

    __slots__ = ()

    @staticmethod
    def squash(action: Tensor) -> Tensor:
        """Map u to tanh(u)."""
        return torch.tanh(action)

    def mode(self) -> Tensor:
        """Return the median, tanh(mean), as u: the density itself may peak at the bounds."""
        return self.mean

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        action, log_prob = DiagonalGaussian.sample_with_log_prob(self, generator)
        return action, log_prob - _log_slope_of_tanh(action).sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return DiagonalGaussian.log_prob(self, action) - _log_slope_of_tanh(action).sum(-1)

    def log_prob_in_units(self, action: Tensor, half_range: Tensor) -> Tensor:
        """Log-density of ``half_range * tanh(u)``, [B]: of an action in the unit of an env's bounds.

        Args:
            action: u, [B, A].
            half_range: Half of the distance between the bounds, [A].
        """
        return self.log_prob(action) - half_range.log().sum(-1)

    def entropy(self) -> Tensor:
        # H[tanh u] = H[u] + E[log d tanh(u) / du]; the expectation by Gauss-Hermite quadrature, since it has no
        # closed form: off by less than 0.01 nats per dimension for std up to 3.
        nodes, weights = _gauss_hermite(self.mean)
        points = self.mean.unsqueeze(-1) + self.std.unsqueeze(-1) * nodes
        return DiagonalGaussian.entropy(self) + (_log_slope_of_tanh(points) @ weights).sum(-1)


class Categorical:
    """One of K choices.

    Args:
        logits: Log-probabilities up to a constant per row, [B, K]; -inf where a choice is not allowed.
    """

    __slots__ = ("log_probs",)

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = F.log_softmax(logits, dim=-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # Gumbel-max: -log of an exponential variable is a Gumbel variable.
        noise = torch.empty_like(self.log_probs).exponential_(generator=generator)
        return (self.log_probs - noise.log_()).argmax(-1)

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        action = self.sample(generator)
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        # 0 log 0 is 0, and not the NaN of 0 times infinity
        finite = self.log_probs.clamp(min=torch.finfo(self.log_probs.dtype).min)
        return -(self.log_probs.exp() * finite).sum(-1)


class MultiCategorical:
    """Several independent choices; an action is [B, D], one index per choice.

    Args:
        logits: The logits of all choices side by side, [B, sum of sizes].
        sizes: Number of possibilities of each of the D choices.
    """

    __slots__ = ("parts",)

    def __init__(self, logits: Tensor, sizes: Sequence[int]) -> None:
        self.parts = [Categorical(part) for part in torch.split(logits, list(sizes), dim=-1)]

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.stack([part.sample(generator) for part in self.parts], dim=-1)

    def sample_with_log_prob(self, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        action = self.sample(generator)
        return action, self.log_prob(action)

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts], dim=-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.stack([part.log_prob(action[..., i]) for i, part in enumerate(self.parts)]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)


def _log_slope_of_tanh(u: Tensor) -> Tensor:
    # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which stays finite where 1 - tanh(u)^2 rounds to 0
    return 2.0 * (_LOG_2 - u - F.softplus(-2.0 * u))


def _gauss_hermite(like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights for the expectation under a standard normal variable, [K] each."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)
    return like.new_tensor(nodes), like.new_tensor(weights / weights.sum())
