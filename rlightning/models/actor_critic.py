"""A policy and a value function over the same observations."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from pydantic import Field, field_validator
from torch import Tensor, nn

from rlightning.config import Section
from rlightning.errors import ShapeError, UnsupportedSpace
from rlightning.functional.distributions import Distribution
from rlightning.models.action_heads import BoxActions, make_action_head
from rlightning.models.cnn import CNN
from rlightning.models.flatten import Flatten
from rlightning.models.initialization import HIDDEN_GAIN, linear
from rlightning.models.mlp import MLP, Activation
from rlightning.models.normalizer import RunningNormalizer
from rlightning.types import Tree


class ActorCriticOptions(Section):
    """``policy.model_cfg`` of actor-critic algorithms."""

    encoder: Literal["auto", "mlp", "cnn"] = "auto"
    """Network in front of the heads; "auto" takes the CNN for bytes with three axes (images), else the MLP."""
    hidden_sizes: list[int] = Field(default_factory=lambda: [64, 64], min_length=1)
    """Width of each layer of the MLP; the CNN's dense layer has the last one."""
    activation: Activation = "tanh"
    """What follows each layer of the MLP; the CNN has rectifiers."""
    share_encoder: bool = False
    """One encoder for both policy and value; false gives each its own."""
    normalize_observation: bool = True
    """Normalise observations by their running mean and variance, clipped to +-10; images never are."""
    box_actions: BoxActions = "clip"
    """How continuous actions keep to their bounds: the Gaussian's value is clipped, or squashed by tanh."""
    log_std_init: float = 0.0
    """Log of the first standard deviation of continuous actions; -1 and 1 are the bounds where there are two."""
    hidden_gain: float = Field(HIDDEN_GAIN, gt=0)
    """Gain of the orthogonal initial weights of the encoders."""
    policy_gain: float = Field(0.01, gt=0)
    """Gain of the policy's last layer; small means a first policy that hardly depends on the observation."""
    value_gain: float = Field(1.0, gt=0)
    """Gain of the value's last layer."""

    @field_validator("hidden_sizes")
    @classmethod
    def _layers_have_units(cls, sizes: list[int]) -> list[int]:
        if min(sizes) < 1:
            raise ValueError("a layer has at least 1 unit")
        return sizes


class ActorCritic(nn.Module):
    """Distribution over actions and value of observations.

    Observations are prepared once (flattened and normalised, or left as images) and then used many times.

    Args:
        observation_space: Of one row.
        action_space: Of one row.
        options: Of the networks.

    Raises:
        UnsupportedSpace: If a space cannot be served; says which one.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], options: ActorCriticOptions
    ) -> None:
        super().__init__()
        self._flatten = None if _sees_images(observation_space, options.encoder) else Flatten(observation_space)
        self.normalizer = None
        if self._flatten is not None and options.normalize_observation:
            self.normalizer = RunningNormalizer((self._flatten.size,))

        def encoder() -> MLP | CNN:
            if self._flatten is not None:
                return MLP(self._flatten.size, options.hidden_sizes, options.activation, options.hidden_gain)
            try:
                return CNN(observation_space.shape or (), options.hidden_sizes[-1], options.hidden_gain)
            except ShapeError as error:
                raise UnsupportedSpace(f"{observation_space}: {error}") from None

        self.actor = encoder()
        self.critic = None if options.share_encoder else encoder()
        self.head = make_action_head(
            action_space,
            self.actor.out_features,
            box_actions=options.box_actions,
            log_std_init=options.log_std_init,
            gain=options.policy_gain,
        )
        self.value_head = linear(self.actor.out_features, 1, options.value_gain)

    def flat(self, observation: Tree) -> Tensor:
        """Give observations as one tensor, not normalised: vectors [B, F], or images as they are."""
        return observation if self._flatten is None else self._flatten(observation)

    def prepare(self, observation: Tree) -> Tensor:
        """Flatten and normalise observations, B rows; images stay as they are."""
        flat = self.flat(observation)
        return flat if self.normalizer is None else self.normalizer(flat)

    def distribution(self, prepared: Tensor) -> Distribution:
        """Give the policy of prepared observations, B rows."""
        distribution: Distribution = self.head(self.actor(prepared))
        return distribution

    def value(self, prepared: Tensor) -> Tensor:
        """Give the values of prepared observations, [B]."""
        encoder = self.actor if self.critic is None else self.critic
        value: Tensor = self.value_head(encoder(prepared)).squeeze(-1)
        return value

    def forward(self, prepared: Tensor) -> tuple[Distribution, Tensor]:
        """Give policy and values of prepared observations."""
        features = self.actor(prepared)
        value_features = features if self.critic is None else self.critic(prepared)
        return self.head(features), self.value_head(value_features).squeeze(-1)


def _sees_images(space: gym.Space[Any], encoder: str) -> bool:
    if encoder == "auto":
        return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3
    if encoder == "cnn" and not isinstance(space, gym.spaces.Box):
        raise UnsupportedSpace(f"{space}: a CNN needs a Box of pixels; set encoder to mlp")
    return encoder == "cnn"
