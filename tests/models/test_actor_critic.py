"""The actor-critic network: what is shared, what travels, how it starts."""

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

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (42, 42, 1), np.uint8)


def network(observation: Any = VECTOR, action: Any = None, **options: Any) -> ActorCritic:
    return ActorCritic(observation, action or spaces.Discrete(2), ActorCriticOptions(**options))


def test_forward_agrees_with_its_parts() -> None:
    for share in (False, True):
        net = network(share_encoder=share)
        prepared = net.prepare(torch.randn(5, 3))
        distribution, value = net(prepared)
        action = distribution.mode()
        torch.testing.assert_close(distribution.log_prob(action), net.distribution(prepared).log_prob(action))
        torch.testing.assert_close(value, net.value(prepared))
        assert value.shape == (5,)


def test_encoders_are_separate_unless_shared() -> None:
    def parameters(net: ActorCritic) -> int:
        return sum(parameter.numel() for parameter in net.parameters())

    # encoder 3*64+64 + 64*64+64 = 4416; policy head 64*2+2 = 130; value head 65
    assert parameters(network()) == 2 * 4416 + 130 + 65
    assert parameters(network(share_encoder=True)) == 4416 + 130 + 65


def test_the_first_policy_hardly_depends_on_the_observation() -> None:
    distribution, _ = network()(torch.randn(50, 3))
    torch.testing.assert_close(distribution.entropy(), torch.full((50,), np.log(2.0)).float(), atol=1e-3, rtol=0)


def test_hidden_weights_are_orthogonal_with_their_gain() -> None:
    first, _, second, _ = network(hidden_gain=2.0).actor
    torch.testing.assert_close(second.weight @ second.weight.T, 4.0 * torch.eye(64), atol=1e-4, rtol=0)
    torch.testing.assert_close(first.weight.T @ first.weight, 4.0 * torch.eye(3), atol=1e-4, rtol=0)
    assert not first.bias.any()


def test_images_get_a_cnn_and_are_not_normalised() -> None:
    net = network(IMAGE)
    assert isinstance(net.actor, CNN)
    assert net.normalizer is None
    images = torch.randint(0, 256, (2, 42, 42, 1), dtype=torch.uint8)
    assert net.prepare(images) is images
    assert net.value(images).shape == (2,)


def test_the_encoder_can_be_chosen() -> None:
    assert isinstance(network(IMAGE, encoder="mlp").actor, MLP)
    floats = spaces.Box(0, 1, (24, 24), np.float32)
    assert isinstance(network(floats).actor, MLP)
    assert isinstance(network(floats, encoder="cnn").actor, CNN)


def test_dicts_of_vectors_are_joined() -> None:
    space = spaces.Dict({"position": VECTOR, "goal": VECTOR})
    observation = {key: torch.randn(4, 3) for key in ("position", "goal")}
    assert network(space).prepare(observation).shape == (4, 6)


@pytest.mark.parametrize("space", [spaces.Dict({"camera": IMAGE}), VECTOR, spaces.Box(0, 255, (2, 2, 3), np.uint8)])
def test_a_cnn_for_what_is_no_image_is_refused(space: Any) -> None:
    with pytest.raises(UnsupportedSpace, match=r"Dict|Box"):
        network(space, encoder="cnn")


def test_the_normaliser_is_part_of_what_travels() -> None:
    names = set(network().state_dict())
    assert {f"normalizer.{name}" for name in ("count", "mean", "var", "shift", "scale")} <= names
    assert not any("normalizer" in name for name in network(normalize_observation=False).state_dict())
