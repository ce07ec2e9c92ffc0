"""Spaces that are stored come back equal."""

import gymnasium as gym
import numpy as np
import pytest

from rlightning.checkpoint import load_state, save_state
from rlightning.errors import UnsupportedSpace
from rlightning.types import EnvMeta, TokenIds
from rlightning.types.spaces import meta_from_state, meta_to_state, space_from_state, space_to_state

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
SPACES = [
    BOX,
    gym.spaces.Box(np.array([0.0, -np.inf]), np.array([np.inf, 2.0]), dtype=np.float64),
    gym.spaces.Box(0, 255, (4, 4, 3), np.uint8),
    gym.spaces.Discrete(3, start=-1),
    gym.spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 0]]),
    gym.spaces.MultiBinary([2, 3]),
    TokenIds(7, 256),
    gym.spaces.Dict([("z", BOX), ("a", gym.spaces.Tuple((BOX, gym.spaces.Discrete(2))))]),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_stored_space_is_equal(space, tmp_path):
    save_state(tmp_path / "state", {"space": space_to_state(space)})
    loaded = space_from_state(load_state(tmp_path / "state")["space"])
    assert loaded == space
    assert type(loaded) is type(space)
    assert repr(loaded) == repr(space)  # the order of the keys, too


def test_a_bound_that_is_everywhere_the_same_is_one_number():
    stored = space_to_state(SPACES[2])
    assert (stored["low"], stored["high"], np.ndim(stored["low"]), np.ndim(stored["high"])) == (0, 255, 0, 0)


def test_a_description_comes_back_whole_or_not_at_all():
    meta = EnvMeta("Arm", BOX, BOX, 3, 100, 50.0, ("shoulder", "elbow"))
    state = meta_to_state(meta)
    assert state is not None
    assert meta_from_state(state) == meta

    class Own(gym.spaces.Box):
        """Of a class that nothing knows later."""

    assert meta_to_state(EnvMeta("Arm", Own(-1, 1, (2,)), BOX, 1)) is None
    with pytest.raises(UnsupportedSpace, match="Graph"):
        space_to_state(gym.spaces.Graph(BOX, None))
    with pytest.raises(UnsupportedSpace, match="'Own'"):
        space_from_state({"kind": "Own"})
