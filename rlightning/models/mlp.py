"""Multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from rlightning.models.initialization import HIDDEN_GAIN, linear

Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}


class MLP(nn.Sequential):
    """Linear layers, each with an activation behind it: [B, inputs] to [B, out_features].

    Args:
        inputs: Number of input features.
        hidden_sizes: Width of each layer; without layers the features are unchanged.
        activation: Activation after each layer.
        gain: Gain of the orthogonal initial weights.

    Attributes:
        out_features: Width of the last layer.
    """

    def __init__(
        self, inputs: int, hidden_sizes: Sequence[int], activation: Activation = "tanh", gain: float = HIDDEN_GAIN
    ) -> None:
        layers: list[nn.Module] = []
        for width in hidden_sizes:
            layers += [linear(inputs, width, gain), _ACTIVATIONS[activation]()]
            inputs = width
        super().__init__(*layers)
        self.out_features = inputs

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        # Calling a small layer as a module takes as long as its computation. Only hooks need the call.
        for layer in self:
            has_hooks = (
                layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
            )
            input = layer(input) if has_hooks else layer.forward(input)  # noqa: A001
        return input
