"""Encoders of observations with several parts: images, texts, and a vector of all other entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlightning.errors import ShapeError, UnsupportedSpace
from rlightning.models.cnn import CNN
from rlightning.models.flatten import Flatten
from rlightning.models.initialization import HIDDEN_GAIN, linear
from rlightning.models.mlp import MLP, Activation
from rlightning.types import TokenIds, Tree

Parts = dict[str, Tensor]

VECTOR = "vector"
"""Name of the part that holds all entries that are neither image nor text, as one vector."""
_SMALLEST_GREY = 16
"""Smallest side, in pixels, at which bytes with two axes are an image and not a table."""
_EMBEDDING = 16


def is_image(space: gym.Space[Any]) -> bool:
    """Whether a space contains images: bytes with three axes, four (a stack), or two of at least 16 pixels."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) in (3, 4) or (len(space.shape) == 2 and min(space.shape) >= _SMALLEST_GREY)


def needs_parts(space: gym.Space[Any]) -> bool:
    """Whether a space has parts that need several networks: a text, or an image in a dict."""
    if isinstance(space, gym.spaces.Dict):
        return any(is_image(part) or needs_parts(part) for part in space.spaces.values())
    return isinstance(space, TokenIds)


class Divider:
    """Divides observations of a space, B rows, into images, texts and one vector of all other entries.

    Args:
        space: Observation space of one row.

    Attributes:
        images: Shape of each image by its name; names are paths such as ``.camera.left``.
        texts: Space of each text by its name.
        size: Length of the vector; 0 if there is none.

    Raises:
        UnsupportedSpace: If an entry is neither image nor text and cannot be flattened.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        self.images: dict[str, tuple[int, ...]] = {}
        self.texts: dict[str, TokenIds] = {}
        self._keys: dict[str, tuple[str, ...]] = {}
        rest = self._take(space, ())
        self._flatten = None if rest is None else Flatten(rest)
        self.size = 0 if self._flatten is None else self._flatten.size

    def __call__(self, observation: Tree) -> Parts:
        """Divide B rows; images and token ids are not copied."""
        parts = {} if self._flatten is None else {VECTOR: self._flatten(observation)}
        for name, keys in self._keys.items():
            part = observation
            for key in keys:
                part = part[key]
            parts[name] = part
        return parts

    def _take(self, space: gym.Space[Any], keys: tuple[str, ...]) -> gym.Space[Any] | None:
        """Register images and texts; return the space of all other entries, None if there are none."""
        name = "".join(f".{key}" for key in keys)
        if isinstance(space, gym.spaces.Dict):
            taken = {key: self._take(part, (*keys, key)) for key, part in space.spaces.items()}
            left = {key: part for key, part in taken.items() if part is not None}
            return gym.spaces.Dict(left) if left else None
        if is_image(space):
            self.images[name] = space.shape or ()
        elif isinstance(space, TokenIds):
            self.texts[name] = space
        else:
            return space
        self._keys[name] = keys
        return None


class TextEncoder(nn.Module):
    """An embedding per token and one dense layer: token ids [B, L] to [B, out_features].

    Args:
        space: Space of the ids.
        out_features: Width of the dense layer.
        gain: Gain of the orthogonal initial weights.
    """

    def __init__(self, space: TokenIds, out_features: int, gain: float = HIDDEN_GAIN) -> None:
        super().__init__()
        self.embedding = nn.Embedding(space.vocabulary, _EMBEDDING, padding_idx=0)
        self.dense = linear(space.length * _EMBEDDING, out_features, gain)
        self.out_features = out_features

    def forward(self, ids: Tensor) -> Tensor:
        """Map token ids to features."""
        return torch.relu(self.dense(self.embedding(ids).flatten(1)))


class MultiEncoder(nn.Module):
    """A CNN per image, an embedding per text, an MLP for the rest, and a dense layer over all of their features.

    Args:
        divider: Defines the parts.
        hidden_sizes: Width of each layer of the MLP; all other dense layers have the last one.
        activation: Activation after each layer of the MLP, and after the last dense layer.
        gain: Gain of the orthogonal initial weights.

    Raises:
        UnsupportedSpace: If an image is too small for a CNN; the message names it.
    """

    def __init__(self, divider: Divider, hidden_sizes: Sequence[int], activation: Activation, gain: float) -> None:
        super().__init__()
        width = hidden_sizes[-1]
        self._names = (*divider.images, *divider.texts)
        encoders: list[nn.Module] = [_cnn(name, shape, width, gain) for name, shape in divider.images.items()]
        encoders += [TextEncoder(space, width, gain) for space in divider.texts.values()]
        self.encoders = nn.ModuleList(encoders)
        self.rest = MLP(divider.size, hidden_sizes, activation, gain) if divider.size else None
        self.joint = MLP(width * (len(encoders) + bool(divider.size)), [width], activation, gain)
        self.out_features = width

    def forward(self, parts: Parts) -> Tensor:
        """Map the parts of B observations to features [B, out_features]."""
        features = [encoder(parts[name]) for name, encoder in zip(self._names, self.encoders, strict=True)]
        if self.rest is not None:
            features.append(self.rest(parts[VECTOR]))
        joined: Tensor = self.joint(torch.cat(features, dim=-1))
        return joined


def _cnn(name: str, shape: tuple[int, ...], width: int, gain: float) -> CNN:
    try:
        return CNN(shape, width, gain)
    except ShapeError as error:
        raise UnsupportedSpace(f"observation{name}: {error}; set encoder to mlp to have it flattened") from None
