"""Convolutional network for images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlightning.errors import ShapeError
from rlightning.models.initialization import HIDDEN_GAIN, conv, linear

# Filters, kernel and stride of each layer, by the smallest side of an image that they apply to.
_LAYERS: list[tuple[int, list[tuple[int, int, int]]]] = [
    (64, [(32, 8, 4), (64, 4, 2), (64, 3, 1)]),  # Mnih et al. 2015
    (24, [(16, 4, 2), (32, 4, 2), (32, 3, 2)]),
    (3, [(16, 3, 1)]),
]


class CNN(nn.Module):
    """Convolutions and one dense layer: images [B, ...] to [B, out_features].

    The smaller side of the image selects the layers: those of Mnih et al. (2015) from 64 pixels on, fewer and finer
    ones below, where a stride of 4 would lose the position of objects. Integer pixels are divided by 255 here, so that
    buffers and messages carry bytes. Floats are not scaled.

    Args:
        shape: (C, H, W), (H, W, C) or (H, W); or (S, ...) for a stack of S such images, whose channels are
            concatenated. The smaller one of the first and the last axis counts as the channels, the last one if they
            are equal.
        out_features: Width of the dense layer.
        gain: Gain of the orthogonal initial weights.

    Raises:
        ShapeError: If the shape is none of these or a side is smaller than 3 pixels.
    """

    def __init__(self, shape: Sequence[int], out_features: int, gain: float = HIDDEN_GAIN) -> None:
        super().__init__()
        channels, height, width, self._order = _layout(tuple(shape))
        self._grey = len(shape) == 2
        layers: list[nn.Module] = []
        for filters, kernel, stride in next(layers for least, layers in _LAYERS if min(height, width) >= least):
            layers += [conv(channels, filters, kernel, stride, gain), nn.ReLU()]
            channels = filters
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        self.convolutions = nn.Sequential(*layers)
        self.dense = linear(channels * height * width, out_features, gain)
        self.out_features = out_features

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, ...] to features [B, out_features]."""
        if not images.is_floating_point():
            images = images.to(torch.float32).div_(255.0)
        if self._grey:
            images = images.unsqueeze(-1)
        maps = self.convolutions(images.permute(0, *self._order).flatten(1, -3))
        return torch.relu(self.dense(maps.flatten(1)))


def _layout(shape: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
    """Return channels, height and width of an image, and the axes of a batch in the order (S,) C, H, W."""
    if len(shape) == 4:
        channels, height, width, order = _layout(shape[1:])
        return shape[0] * channels, height, width, (1, *(axis + 1 for axis in order))
    if len(shape) == 2:
        shape = (*shape, 1)
    if len(shape) == 3:
        first = shape[0] < shape[2]
        channels, height, width = shape if first else (shape[2], shape[0], shape[1])
        if min(height, width) >= 3:
            return channels, height, width, (1, 2, 3) if first else (3, 1, 2)
    raise ShapeError(f"an image is (C, H, W), (H, W, C) or (H, W) with sides of at least 3 pixels, got {shape}")
