"""Dicts with images and texts: a network of its own for each kind of part, and nothing is flattened in silence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlightning.errors import UnsupportedSpace
from rlightning.models.actor_critic import ActorCritic, ActorCriticOptions
from rlightning.models.cnn import CNN
from rlightning.models.mlp import MLP
from rlightning.models.multi import VECTOR, MultiEncoder, TextEncoder
from rlightning.types import TokenIds

IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
VECTOR_SPACE = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ROBOT = spaces.Dict(
    camera=spaces.Dict(left=IMAGE, tilt=spaces.Discrete(2)), joints=VECTOR_SPACE, mission=TokenIds(6, 257)
)


def network(space: Any, **options: Any) -> ActorCritic:
    return ActorCritic(space, spaces.Discrete(2), ActorCriticOptions(**options))


def robot(rows: int) -> Any:
    left = torch.randint(0, 256, (rows, 8, 8, 3), dtype=torch.uint8)
    mission = torch.randint(0, 257, (rows, 6), dtype=torch.int32)
    camera = {"left": left, "tilt": torch.ones(rows, dtype=torch.int64)}
    return {"camera": camera, "joints": torch.randn(rows, 4), "mission": mission}


def test_each_kind_of_part_has_a_network_of_its_own() -> None:
    net = network(ROBOT)
    assert isinstance(net.actor, MultiEncoder)
    assert [type(encoder) for encoder in net.actor.encoders] == [CNN, TextEncoder]
    assert isinstance(net.actor.rest, MLP)
    distribution, value = net(net.prepare(robot(5)))
    assert distribution.mode().shape == value.shape == (5,)


def test_images_and_texts_are_not_normalised() -> None:
    net, observation = network(ROBOT), robot(50)
    assert net.normalizer is not None
    # The vector: 4 joints, and the 2 choices of the tilt as one-hot.
    assert net.normalizer.shift.shape == (6,)
    flat = net.flat(observation)
    assert isinstance(flat, dict)
    moments = net.moments(flat)
    assert moments is not None
    net.normalizer.merge(moments)
    prepared = net.prepare(observation)
    assert isinstance(prepared, dict)
    assert prepared[".camera.left"] is observation["camera"]["left"]
    assert prepared[".mission"] is observation["mission"]
    assert prepared[VECTOR].mean(0).abs().max() < 1e-5


def test_a_dict_of_nothing_but_images_has_nothing_to_normalise() -> None:
    net = network(spaces.Dict(left=IMAGE, right=IMAGE))
    assert net.normalizer is None
    images = {side: torch.zeros(2, 8, 8, 3, dtype=torch.uint8) for side in ("left", "right")}
    assert net.value(net.prepare(images)).shape == (2,)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Dict(image=IMAGE, vector=VECTOR_SPACE), MultiEncoder),
        (spaces.Dict(a=spaces.Dict(image=IMAGE)), MultiEncoder),
        (TokenIds(6, 257), MultiEncoder),
        (spaces.Dict(a=VECTOR_SPACE, b=VECTOR_SPACE), MLP),
        (IMAGE, CNN),
        (spaces.Box(0, 255, (4, 8, 8, 3), np.uint8), CNN),  # a stack of frames
        (spaces.Box(0, 255, (84, 84), np.uint8), CNN),  # a grey picture
        (spaces.Box(0, 255, (6, 7), np.uint8), MLP),  # the board of a game
        (spaces.Box(0, 255, (128,), np.uint8), MLP),
    ],
)
def test_the_encoder_follows_from_the_space(space: Any, kind: type[Any]) -> None:
    assert isinstance(network(space).actor, kind)


def test_an_image_that_is_too_small_is_named() -> None:
    with pytest.raises(UnsupportedSpace, match=r"observation\.tiny: .*set encoder to mlp"):
        network(spaces.Dict(tiny=spaces.Box(0, 255, (2, 2, 3), np.uint8)))
    assert isinstance(network(spaces.Dict(tiny=IMAGE), encoder="mlp").actor, MLP)


def test_the_frames_of_a_stack_become_channels() -> None:
    torch.manual_seed(0)
    stacked = CNN((2, 8, 9, 3), 5)
    # The same filters over one image with the channels of both frames, one after the other.
    joined = CNN((6, 8, 9), 5)
    joined.load_state_dict(stacked.state_dict())
    frames = torch.randint(0, 256, (4, 2, 8, 9, 3), dtype=torch.uint8)
    channels = torch.cat([frames[:, 0].permute(0, 3, 1, 2), frames[:, 1].permute(0, 3, 1, 2)], dim=1)
    torch.testing.assert_close(stacked(frames), joined(channels))


def test_the_order_of_a_text_matters() -> None:
    encoder = TextEncoder(TokenIds(3, 10), 8)
    one, other = encoder(torch.tensor([[1, 2, 0], [2, 1, 0]], dtype=torch.int32))
    assert not torch.allclose(one, other)
