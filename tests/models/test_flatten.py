"""Observations of every kind become one vector per row."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from rlightning.errors import UnsupportedSpace
from rlightning.models.flatten import Flatten


def test_a_vector_of_floats_passes_unchanged() -> None:
    rows = torch.randn(4, 3)
    flatten = Flatten(spaces.Box(-1, 1, (3,), np.float32))
    assert flatten(rows) is rows
    assert flatten.size == 3


@pytest.mark.parametrize(
    ("space", "rows", "expected"),
    [
        (spaces.Box(0, 9, (2, 2), np.float32), [[[1.0, 2.0], [3.0, 4.0]]], [1, 2, 3, 4]),
        (spaces.Box(0, 9, (), np.float32), [5.0], [5]),
        (spaces.Box(0, 9, (2,), np.int64), [[1, 2]], [1, 2]),
        (spaces.MultiBinary(3), [[1, 0, 1]], [1, 0, 1]),
        (spaces.Discrete(3), [1], [0, 1, 0]),
        (spaces.Discrete(3, start=-1), [1], [0, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), [[1, 0]], [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), [[5, 1]], [1, 0, 0, 0, 1]),
    ],
)
def test_one_row_by_hand(space: gym.Space[Any], rows: Any, expected: list[float]) -> None:
    flatten = Flatten(space)
    vector = flatten(torch.tensor(rows))
    assert vector.tolist() == [expected]
    assert vector.dtype is torch.float32
    assert flatten.size == len(expected)


def test_parts_of_a_dict_follow_each_other_in_the_order_of_the_space() -> None:
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({"c": spaces.Box(0, 9, (2,), np.float32)})})
    observation = {"b": {"c": torch.tensor([[3.0, 4.0]])}, "a": torch.tensor([1])}
    assert Flatten(space)(observation).tolist() == [[0.0, 1.0, 3.0, 4.0]]
    assert Flatten(space)(TensorDict(observation, [1])).tolist() == [[0.0, 1.0, 3.0, 4.0]]


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Tuple([spaces.Discrete(2)]), spaces.Dict({"x": spaces.Text(5)})]
)
def test_other_spaces_are_refused_by_name(space: gym.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpace, match=r"Text|Tuple"):
        Flatten(space)
