"""Texts as numbers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class TokenIds(gym.spaces.MultiDiscrete):
    """Token ids of a text: L numbers from 0 to ``vocabulary - 1``, int32; short texts are padded with 0.

    Args:
        length: L.
        vocabulary: Number of different ids, including 0.
    """

    def __init__(self, length: int, vocabulary: int) -> None:
        super().__init__(np.full(length, vocabulary), dtype=np.int32)  # type: ignore[arg-type]  # any integer serves
        self.length, self.vocabulary = length, vocabulary

    def __repr__(self) -> str:
        return f"TokenIds({self.length}, {self.vocabulary})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.length, self.vocabulary)
