"""Flattening of observations to one vector per row."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 -- torch's own customary name

from rlightning.errors import UnsupportedSpace
from rlightning.types import Tree


class Flatten:
    """Convert observations of a space to float32 vectors, [B, ...] to [B, size].

    Box and MultiBinary are flattened, Discrete and MultiDiscrete become one-hot, and the entries of a Dict are
    concatenated in the order of the space.

    Args:
        space: Observation space of one row.

    Attributes:
        size: Length of a vector.

    Raises:
        UnsupportedSpace: If the space or an entry of it is none of these.
    """

    size: int

    def __init__(self, space: gym.Space[Any]) -> None:
        self._parts: dict[str, Flatten] = {}
        self._choices: list[tuple[int, int]] = []
        if isinstance(space, gym.spaces.Dict):
            self._parts = {key: Flatten(part) for key, part in space.spaces.items()}
            self.size = sum(part.size for part in self._parts.values())
        elif isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary):
            self.size = int(torch.Size(space.shape).numel())
        elif isinstance(space, gym.spaces.Discrete):
            self._choices = [(int(space.start), int(space.n))]
            self.size = int(space.n)
        elif isinstance(space, gym.spaces.MultiDiscrete):
            self._choices = list(zip(space.start.flatten().tolist(), space.nvec.flatten().tolist(), strict=True))
            self.size = sum(n for _, n in self._choices)
        else:
            raise UnsupportedSpace(
                f"{space}: observations can be Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of them"
            )

    def __call__(self, observation: Tree) -> Tensor:
        """Flatten B rows."""
        if self._parts:
            return torch.cat([part(observation[key]) for key, part in self._parts.items()], dim=-1)
        rows: Tensor = observation
        if self._choices:
            columns = rows.reshape(rows.shape[0], -1).to(torch.int64)
            one_hot = [F.one_hot(columns[:, i] - start, n) for i, (start, n) in enumerate(self._choices)]
            rows = torch.cat(one_hot, dim=-1)
        elif rows.ndim != 2:
            rows = rows.reshape(rows.shape[0], -1)
        return rows if rows.dtype is torch.float32 else rows.to(torch.float32)
