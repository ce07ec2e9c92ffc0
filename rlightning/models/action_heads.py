"""Action heads: features to a distribution over actions, and sampled actions to the env's actions."""

from __future__ import annotations

import logging
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlightning.errors import UnsupportedSpace
from rlightning.functional.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
)
from rlightning.models.initialization import linear

BoxActions = Literal["clip", "squash"]

_log = logging.getLogger(__name__)

_WIDEST_RANGE = 1e5
"""Half of the distance between two bounds at which they count as unbounded. Envs write "no bound" as 1e6, 1e10 or the
largest float. No actuator has such a range: with the standard deviation scaled to it, the first policy would act by
noise alone, and clipping would never happen."""


class ActionHead(nn.Module):
    """Last layer of a policy for one kind of action space.

    The distribution has a unit of its own. Log-probs refer to actions in that unit, and buffers store these actions.
    """

    def forward(self, features: Tensor) -> Distribution:
        """Return one distribution per row, from [B, inputs]."""
        raise NotImplementedError

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions of the distribution to env actions, [B, ...] in the space's shape, dtype and bounds."""
        raise NotImplementedError


class BoxHead(ActionHead):
    """Gaussian with a state-independent standard deviation, for continuous actions with any bounds.

    The unit of the distribution: in a dimension with two bounds, they are -1 and 1. In any other dimension it is the
    env's unit, and 0 is the env's 0 or the bound nearest to it. Bounds that are 2e5 or more apart count as none. A
    dimension with equal bounds has no effect, which is logged. With "clip", the distribution may reach beyond the
    bounds, and the env receives the clipped action. With "squash", the env receives the tanh of the action. The stored
    action is the one before tanh, [B, A], where its log-prob is accurate.

    Args:
        space: Action space of one row; its A dimensions are flattened for the distribution.
        inputs: Number of features.
        mode: "clip" or "squash".
        log_std_init: Log of the initial standard deviation, in the unit of the distribution.
        gain: Gain of the orthogonal initial weights.

    Raises:
        UnsupportedSpace: If the actions are integers, if a bound is missing in mode "squash", or if no dimension has
            more than one value.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    half_range: Tensor

    def __init__(self, space: gym.spaces.Box, inputs: int, mode: BoxActions, log_std_init: float, gain: float) -> None:
        super().__init__()
        if not np.issubdtype(space.dtype, np.floating):
            raise UnsupportedSpace(
                f"{space}: a Box of actions must be of floats; use Discrete or MultiDiscrete for integers"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # inf - inf, in dimensions that are not bounded
            half_range = (high - low) / 2
            bounded = half_range < _WIDEST_RANGE
            centre = np.where(bounded, (low + high) / 2, np.clip(0.0, low, high))
            half_range = np.where(bounded, half_range, 1.0)
        _check_fixed_dimensions(space, low == high)
        if mode == "squash" and not bounded.all():
            raise UnsupportedSpace(f"{space}: actions without bounds cannot be squashed; set box_actions to clip")
        self.mode = mode
        self._shape = space.shape
        self._dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype
        self._is_unit = bool(np.all(centre == 0.0) and np.all(half_range == 1.0)) and self._dtype is torch.float32
        for name, value in (("low", low), ("high", high), ("centre", centre), ("half_range", half_range)):
            self.register_buffer(name, torch.from_numpy(value).to(self._dtype).flatten(), persistent=False)
        self.mean = linear(inputs, low.size, gain)
        self.log_std = nn.Parameter(torch.full((low.size,), log_std_init))

    def forward(self, features: Tensor) -> DiagonalGaussian:
        family = SquashedGaussian if self.mode == "squash" else DiagonalGaussian
        return family(self.mean(features), self.log_std)

    def to_env(self, action: Tensor) -> Tensor:
        if self.mode == "squash":
            action = torch.tanh(action)
        if not self._is_unit:
            action = torch.addcmul(self.centre, action.to(self._dtype), self.half_range)
        action = torch.clamp(action, self.low, self.high)
        return action if len(self._shape) == 1 else action.reshape(-1, *self._shape)


def _check_fixed_dimensions(space: gym.Space[Any], fixed: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    """Log which dimensions of a space have a single value; refuse the space if all have."""
    if fixed.all():
        raise UnsupportedSpace(f"{space}: no action can move anything, since each dimension has a single value")
    if fixed.any():
        indices = ", ".join(str(index) for index in np.flatnonzero(fixed).tolist())
        _log.warning("%s: actions of the dimensions %s move nothing, since they have a single value", space, indices)


class DiscreteHead(ActionHead):
    """Categorical distribution over 0 .. n-1; the env receives start .. start+n-1.

    Args:
        space: Action space of one row.
        inputs: Number of features.
        gain: Gain of the orthogonal initial weights.
    """

    def __init__(self, space: gym.spaces.Discrete, inputs: int, gain: float) -> None:
        super().__init__()
        _check_fixed_dimensions(space, np.array([space.n == 1]))
        self.start = int(space.start)
        self.logits = linear(inputs, int(space.n), gain)

    def forward(self, features: Tensor) -> Categorical:
        return Categorical(self.logits(features))

    def to_env(self, action: Tensor) -> Tensor:
        return action + self.start if self.start else action


class MultiDiscreteHead(ActionHead):
    """Independent categorical distributions, one for each of the D choices; an action is [B, D].

    Args:
        space: Action space of one row; its choices are flattened for the distribution.
        inputs: Number of features.
        gain: Gain of the orthogonal initial weights.
    """

    start: Tensor

    def __init__(self, space: gym.spaces.MultiDiscrete | gym.spaces.MultiBinary, inputs: int, gain: float) -> None:
        super().__init__()
        if isinstance(space, gym.spaces.MultiBinary):
            sizes, start = np.full(space.shape, 2), np.zeros(space.shape, np.int64)
        else:
            sizes, start = space.nvec, space.start
        _check_fixed_dimensions(space, sizes == 1)
        self._sizes: list[int] = sizes.flatten().tolist()
        self._shape = space.shape
        self._dtype = torch.from_numpy(np.zeros(0, space.dtype)).dtype
        self.register_buffer("start", torch.from_numpy(start.flatten().astype(np.int64)), persistent=False)
        self.logits = linear(inputs, sum(self._sizes), gain)

    def forward(self, features: Tensor) -> MultiCategorical:
        return MultiCategorical(self.logits(features), self._sizes)

    def to_env(self, action: Tensor) -> Tensor:
        return (action + self.start).to(self._dtype).reshape(-1, *self._shape)


def make_action_head(
    space: gym.Space[Any], inputs: int, *, box_actions: BoxActions, log_std_init: float, gain: float
) -> ActionHead:
    """Build the head for an action space.

    Args:
        space: Action space of one row.
        inputs: Number of features.
        box_actions: How continuous actions keep to their bounds; see ``BoxHead``.
        log_std_init: Log of the initial standard deviation of continuous actions; see ``BoxHead``.
        gain: Gain of the orthogonal initial weights.

    Raises:
        UnsupportedSpace: If no head supports the space.
    """
    if isinstance(space, gym.spaces.Box):
        return BoxHead(space, inputs, box_actions, log_std_init, gain)
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteHead(space, inputs, gain)
    if isinstance(space, gym.spaces.MultiDiscrete | gym.spaces.MultiBinary):
        return MultiDiscreteHead(space, inputs, gain)
    raise UnsupportedSpace(f"{space}: actions can be Box, Discrete, MultiDiscrete or MultiBinary")
