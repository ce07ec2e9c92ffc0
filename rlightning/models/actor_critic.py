"""A policy and a value function over the same observations."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium as gym
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from rlightning import registry
from rlightning.config import Section
from rlightning.errors import ConfigError, Problem, ShapeError, UnsupportedSpace, nearest_name
from rlightning.functional.distributions import Distribution
from rlightning.models.action_heads import BoxActions, make_action_head
from rlightning.models.cnn import CNN
from rlightning.models.flatten import Flatten
from rlightning.models.initialization import HIDDEN_GAIN, linear
from rlightning.models.mlp import MLP, Activation
from rlightning.models.multi import VECTOR, Divider, MultiEncoder, Parts, is_image, needs_parts
from rlightning.models.normalizer import Moments, RunningNormalizer
from rlightning.types import Tree

Prepared = Tensor | Parts
"""Input of the encoders, B rows: vectors or images, or a dict of both."""


_ENCODERS = ("auto", "mlp", "cnn", "multi")


class Encoder(Protocol):
    """What a model of one's own offers: ``@register("model", name)`` on a class of ``nn.Module``.

    It is built as ``cls(observation_space, **encoder_cfg)``, once for the policy and, without ``share_encoder``, once
    for the value. A vector (a Box of one axis) is normalised before, where ``normalize_observation`` is set. All else
    comes as the env shows it: images as bytes [B, ...], a dict as a dict of tensors.

    Attributes:
        out_features: F, the number of features.
    """

    out_features: int

    def __call__(self, observation: Prepared) -> Tensor:
        """Map B observations to features [B, F], float32."""


class ActorCriticOptions(Section):
    """``policy.model_cfg`` of actor-critic algorithms."""

    encoder: str = "auto"
    """Network in front of the heads: "auto", "mlp", "cnn", "multi", or the name of a registered model of your own.
    "multi": a CNN per image of a dict, an embedding per text, an MLP for the rest, and a dense layer over all of them.
    "auto" selects the CNN for images, "multi" for texts and dicts with images, and the MLP otherwise. Images are bytes
    with three axes, four (a stack), or two of at least 16 pixels."""
    encoder_cfg: dict[str, Any] = Field(default_factory=dict)
    """Arguments of an encoder of your own."""
    hidden_sizes: list[int] = Field(default_factory=lambda: [64, 64], min_length=1)
    """Width of each layer of the MLP; the dense layers of the other networks have the last one."""
    activation: Activation = "tanh"
    """Activation after each layer of the MLP; the CNN has rectifiers."""
    share_encoder: bool = False
    """Whether policy and value share one encoder."""
    normalize_observation: bool = True
    """Normalise observations by their running mean and variance, clipped to +-10. Images and texts with a network of
    their own are not normalised."""
    box_actions: BoxActions = "clip"
    """How continuous actions keep to their bounds: the Gaussian's value is clipped, or squashed by tanh."""
    log_std_init: float = 0.0
    """Log of the initial standard deviation of continuous actions; -1 and 1 are the bounds where there are two."""
    hidden_gain: float = Field(HIDDEN_GAIN, gt=0)
    """Gain of the orthogonal initial weights of the encoders."""
    policy_gain: float = Field(0.01, gt=0)
    """Gain of the policy's last layer. With a small one, the initial policy hardly depends on the observation."""
    value_gain: float = Field(1.0, gt=0)
    """Gain of the value's last layer."""

    @field_validator("encoder")
    @classmethod
    def _encoder_is_known(cls, name: str) -> str:
        known = (*_ENCODERS, *registry.names("model"))
        if name not in known:
            near = nearest_name(name, known)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"must be one of {', '.join(known)}; your own need their module under imports{hint}")
        return name

    @model_validator(mode="after")
    def _arguments_have_an_encoder(self) -> ActorCriticOptions:
        if self.encoder_cfg and self.encoder in _ENCODERS:
            raise ValueError(f"encoder_cfg is for an encoder of your own, and encoder is {self.encoder!r}")
        return self

    @field_validator("hidden_sizes")
    @classmethod
    def _layers_have_units(cls, sizes: list[int]) -> list[int]:
        if min(sizes) < 1:
            raise ValueError("a layer has at least 1 unit")
        return sizes


class ActorCritic(nn.Module):
    """Distribution over actions and value of observations.

    Observations are prepared once (flattened and normalised, left as images, or divided) and then used many times.

    Args:
        observation_space: Observation space of one row.
        action_space: Action space of one row.
        options: Options of the networks.

    Raises:
        UnsupportedSpace: If a space is not supported; the message names it.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], options: ActorCriticOptions
    ) -> None:
        super().__init__()
        kind = _encoder_for(observation_space, options.encoder)
        is_vector = isinstance(observation_space, gym.spaces.Box) and len(observation_space.shape) == 1
        self._divide: Flatten | Divider | None = None
        if kind == "mlp" or (kind not in _ENCODERS and is_vector):
            self._divide = Flatten(observation_space)
        elif kind == "multi":
            self._divide = Divider(observation_space)
        self.normalizer = None
        if self._divide is not None and self._divide.size and options.normalize_observation:
            self.normalizer = RunningNormalizer((self._divide.size,))

        def encoder() -> Any:
            if kind not in _ENCODERS:
                return _build_own(kind, observation_space, options.encoder_cfg)
            if isinstance(self._divide, Divider):
                return MultiEncoder(self._divide, options.hidden_sizes, options.activation, options.hidden_gain)
            if self._divide is not None:
                return MLP(self._divide.size, options.hidden_sizes, options.activation, options.hidden_gain)
            try:
                return CNN(observation_space.shape or (), options.hidden_sizes[-1], options.hidden_gain)
            except ShapeError as error:
                raise UnsupportedSpace(f"{observation_space}: {error}") from None

        self.actor = actor = encoder()
        self.critic = None if options.share_encoder else encoder()
        self.head = make_action_head(
            action_space,
            actor.out_features,
            box_actions=options.box_actions,
            log_std_init=options.log_std_init,
            gain=options.policy_gain,
        )
        self.value_head = linear(actor.out_features, 1, options.value_gain)

    def flat(self, observation: Tree) -> Prepared:
        """Flatten observations without normalising them: vectors [B, F], images unchanged, or a dict of both."""
        return observation if self._divide is None else self._divide(observation)

    def normalized(self, flat: Prepared) -> Prepared:
        """Normalise the result of ``flat``; images and texts are unchanged."""
        if self.normalizer is None:
            return flat
        if isinstance(flat, dict):
            return flat | {VECTOR: self.normalizer(flat[VECTOR])}
        normalized: Tensor = self.normalizer(flat)
        return normalized

    def moments(self, flat: Prepared) -> Moments | None:
        """Compute the moments of a result of ``flat``; None if nothing is normalised."""
        if self.normalizer is None:
            return None
        return Moments.of(flat[VECTOR] if isinstance(flat, dict) else flat)

    def prepare(self, observation: Tree) -> Prepared:
        """Flatten and normalise observations, B rows; images and texts are unchanged."""
        return self.normalized(self.flat(observation))

    def distribution(self, prepared: Prepared) -> Distribution:
        """Compute the distribution over actions for prepared observations, B rows."""
        distribution: Distribution = self.head(self.actor(prepared))
        return distribution

    def value(self, prepared: Prepared) -> Tensor:
        """Compute the values of prepared observations, [B]."""
        encoder = self.actor if self.critic is None else self.critic
        value: Tensor = self.value_head(encoder(prepared)).squeeze(-1)
        return value

    def forward(self, prepared: Prepared) -> tuple[Distribution, Tensor]:
        """Compute the distribution over actions and the values, [B], for prepared observations."""
        features = self.actor(prepared)
        value_features = features if self.critic is None else self.critic(prepared)
        return self.head(features), self.value_head(value_features).squeeze(-1)


def _encoder_for(space: gym.Space[Any], encoder: str) -> str:
    if encoder == "auto":
        return "cnn" if is_image(space) else "multi" if needs_parts(space) else "mlp"
    if encoder not in _ENCODERS and isinstance(space, gym.spaces.Tuple):
        raise UnsupportedSpace(f"{space}: an encoder of your own needs one array, or a dict of arrays")
    if encoder == "cnn" and not isinstance(space, gym.spaces.Box):
        raise UnsupportedSpace(f"{space}: a CNN needs a Box of pixels; set encoder to multi or auto")
    return encoder


def _build_own(name: str, space: gym.Space[Any], arguments: dict[str, Any]) -> nn.Module:
    """Build a registered model.

    Raises:
        ConfigError: If it does not take the arguments, or is no encoder.
    """
    try:
        model = registry.lookup("model", name)(space, **arguments)
    except TypeError as error:
        raise ConfigError(Problem("policy.model_cfg.encoder_cfg", f"{name}: {error}")) from error
    if not isinstance(model, nn.Module) or not isinstance(getattr(model, "out_features", None), int):
        message = f"{name} must be a torch.nn.Module with out_features, the number of its features"
        raise ConfigError(Problem("policy.model_cfg.encoder", message))
    return model
