"""Layers with orthogonal initial weights, drawn from torch's global generator, which the framework seeds."""

from __future__ import annotations

from torch import nn

HIDDEN_GAIN = 2.0**0.5
"""Keeps the scale of features through a rectifier."""


def linear(inputs: int, outputs: int, gain: float = HIDDEN_GAIN) -> nn.Linear:
    """Build a linear layer with orthogonal weights (Saxe et al. 2014) and zero bias.

    Args:
        inputs: Size of the last axis of the input.
        outputs: Size of the last axis of the output.
        gain: Factor of the orthogonal matrix; with 0.01 an initial policy hardly depends on its input.
    """
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def conv(inputs: int, outputs: int, kernel: int, stride: int, gain: float = HIDDEN_GAIN) -> nn.Conv2d:
    """Build a convolution without padding, with orthogonal filters and zero bias.

    Args:
        inputs: Channels of the input.
        outputs: Channels of the output.
        kernel: Side of the filters in pixels.
        stride: Pixels between two positions of a filter.
        gain: Factor of the orthogonal matrix of the flattened filters.
    """
    layer = nn.Conv2d(inputs, outputs, kernel, stride)
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
