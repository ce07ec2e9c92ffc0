"""Action heads: the unit of the distribution, and what the env receives."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlightning.errors import UnsupportedSpace
from rlightning.functional.distributions import SquashedGaussian
from rlightning.models.action_heads import ActionHead, BoxActions, make_action_head

FEATURES = torch.zeros(1, 4)


def head(space: gym.Space[Any], box_actions: BoxActions = "clip") -> ActionHead:
    return make_action_head(space, 4, box_actions=box_actions, log_std_init=0.0, gain=0.01)


def box(low: Any, high: Any, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


# The unit of the distribution is the env's own where a bound is missing; with two bounds they are -1 and 1.
@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (box([-1, -1], [1, 1]), [0.5, 3.0], [0.5, 1.0]),
        (box([-2, 0], [2, 10]), [0.5, 0.5], [1.0, 7.5]),  # 0 + 0.5 * 2; 5 + 0.5 * 5
        (box([-2, 0], [2, 10]), [-9.0, 9.0], [-2.0, 10.0]),
        (box([-math.inf], [math.inf]), [123.0], [123.0]),
        (box([3.0], [math.inf]), [1.0], [4.0]),  # centred as near to 0 as the bounds allow
        (box([-math.inf], [3.0]), [1.0], [1.0]),
        (box([-math.inf], [3.0]), [9.0], [3.0]),
        (box([-np.finfo(np.float32).max], [np.finfo(np.float32).max]), [123.0], [123.0]),
        (box([-0.1], [0.3], np.float64), [0.0], [0.1]),
        (box([2.0, -1.0], [2.0, 1.0]), [0.7, 0.7], [2.0, 0.7]),
        (box([-1e10], [1e10]), [123.0], [123.0]),  # as dm_control writes "no bound"
        (box([-1e6], [1e6]), [123.0], [123.0]),
        (box([0.0], [1e10]), [123.0], [123.0]),
        (box([-5e4], [5e4]), [0.5], [2.5e4]),
        (box([-np.finfo(np.float64).max], [np.finfo(np.float64).max], np.float64), [123.0], [123.0]),
    ],
)
def test_clipped_actions_in_the_unit_of_the_env(space: spaces.Box, action: list[float], expected: list[float]) -> None:
    env_action = head(space).to_env(torch.tensor([action]))
    np.testing.assert_allclose(env_action.numpy()[0], expected, rtol=1e-6)
    assert space.contains(env_action.numpy()[0])


def test_squashed_actions_stay_within_the_bounds() -> None:
    space = box([-2, 0], [2, 10])
    squash = head(space, "squash")
    # tanh(0.5) = 0.462117: 2 * 0.462117 = 0.924234 and 5 + 5 * 0.462117 = 7.310586
    np.testing.assert_allclose(squash.to_env(torch.full((1, 2), 0.5)).numpy()[0], [0.924234, 7.310586], rtol=1e-6)
    for far in (-1e6, 1e6):
        assert space.contains(squash.to_env(torch.full((1, 2), far)).numpy()[0])
    assert isinstance(squash(FEATURES), SquashedGaussian)


def test_squashing_needs_bounds() -> None:
    with pytest.raises(UnsupportedSpace, match=r"without bounds.*clip"):
        head(box([-1, -math.inf], [1, 1]), "squash")


def test_actions_of_any_shape_are_flat_for_the_distribution() -> None:
    for shape in ((), (2, 3)):
        space = spaces.Box(-1, 1, shape, np.float32)
        module = head(space)
        action = module(FEATURES.expand(5, 4)).sample()
        assert action.shape == (5, max(1, math.prod(shape)))
        assert module.to_env(action).shape == (5, *shape)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_actions_have_the_type_of_the_space(dtype: Any) -> None:
    space = box([-0.1, -0.7], [0.1, 0.3], dtype)
    for value in (-50.0, 0.3, 50.0):
        assert space.contains(head(space).to_env(torch.full((1, 2), value)).numpy()[0])


def test_discrete_actions_with_a_start() -> None:
    space = spaces.Discrete(3, start=-1)
    actions = head(space)(FEATURES.expand(200, 4)).sample()
    assert set(actions.tolist()) == {0, 1, 2}
    assert set(head(space).to_env(actions).tolist()) == {-1, 0, 1}
    assert space.contains(head(space).to_env(actions).numpy()[0])


@pytest.mark.parametrize(
    ("space", "last"),
    [
        (spaces.MultiDiscrete([2, 3]), [1, 2]),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), [6, 1]),
        (spaces.MultiDiscrete([[2], [3]]), [[1], [2]]),
        (spaces.MultiBinary(2), None),
    ],
)
def test_several_choices_at_once(space: gym.Space[Any], last: Any) -> None:
    module = head(space)
    actions = module(FEATURES.expand(50, 4)).sample()
    assert actions.shape == (50, 2)
    assert all(space.contains(row) for row in module.to_env(actions).numpy())
    if last is not None:
        assert module.to_env(torch.tensor([[1, 2]])).tolist() == [last]


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Dict({}), spaces.Box(0, 9, (2,), np.int64)])
def test_other_spaces_are_refused_by_name(space: gym.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpace, match=r"Text|Dict|Box"):
        head(space)


def test_dimensions_that_move_nothing_are_said(caplog: pytest.LogCaptureFixture) -> None:
    head(box([0.0, 2.0, -1.0, 3.0], [1.0, 2.0, 1.0, 3.0]))
    head(spaces.MultiDiscrete([2, 1]))
    first, second = caplog.messages
    assert "dimensions 1, 3 move nothing" in first
    assert "dimensions 1 move nothing" in second


@pytest.mark.parametrize("space", [box([2.0], [2.0]), spaces.Discrete(1), spaces.MultiDiscrete([1, 1])])
def test_actions_that_can_move_nothing_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpace, match="no action can move anything"):
        head(space)
