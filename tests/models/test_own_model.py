"""Networks of one's own in front of the heads."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rlightning.configuring.load import load_config
from rlightning.errors import ConfigError, UnsupportedSpace
from rlightning.models.actor_critic import ActorCritic, ActorCriticOptions
from rlightning.registry import register

VECTOR = gym.spaces.Box(-1, 1, (3,))
IMAGE = gym.spaces.Box(0, 255, (4, 4, 1), np.uint8)
ACTIONS = gym.spaces.Discrete(2)


@register("model", "seen")
class Seen(nn.Module):
    """Keeps what it is given."""

    def __init__(self, space, scale=1.0):
        super().__init__()
        self.out_features, self.scale, self.weight = 2, scale, nn.Parameter(torch.ones(2))

    def forward(self, observation):
        self.given = observation
        rows = observation["camera"] if isinstance(observation, dict) else observation
        return self.scale * rows.flatten(1)[:, :2].float() * self.weight


register("model", "no_width")(lambda space: nn.Identity())


def network(space, **options):
    return ActorCritic(space, ACTIONS, ActorCriticOptions(encoder="seen", **options))


def test_a_vector_is_normalised_and_policy_and_value_have_a_model_each():
    net = network(VECTOR)
    net.normalizer.update(torch.tensor([[0.0, 0.0, 0.0], [2.0, 4.0, 6.0]]))
    net(net.prepare(torch.tensor([[2.0, 4.0, 6.0]])))
    torch.testing.assert_close(net.actor.given, torch.ones(1, 3), atol=1e-3, rtol=0)
    assert net.critic is not net.actor
    assert network(VECTOR, share_encoder=True).critic is None
    assert network(VECTOR, normalize_observation=False).normalizer is None


@pytest.mark.parametrize("space", [IMAGE, gym.spaces.Dict(camera=IMAGE, joints=VECTOR)])
def test_all_else_comes_as_the_env_shows_it(space):
    net = network(space, encoder_cfg={"scale": 0.5})
    sample = space.sample()
    rows = (
        {k: torch.as_tensor(v)[None] for k, v in sample.items()}
        if isinstance(sample, dict)
        else torch.as_tensor(sample)[None]
    )
    net(net.prepare(rows))
    given = net.actor.given["camera"] if isinstance(rows, dict) else net.actor.given
    assert given.dtype is torch.uint8
    assert net.actor.scale == 0.5


def test_what_is_no_model_is_refused():
    with pytest.raises(UnsupportedSpace, match="one array, or a dict of arrays"):
        network(gym.spaces.Tuple((VECTOR, IMAGE)))
    with pytest.raises(ConfigError, match=r"encoder_cfg: seen: .*unexpected keyword argument 'depth'"):
        network(VECTOR, encoder_cfg={"depth": 3})
    with pytest.raises(ConfigError, match=r"no_width must be a torch\.nn.Module with out_features"):
        ActorCritic(VECTOR, ACTIONS, ActorCriticOptions(encoder="no_width"))
    with pytest.raises(
        ConfigError, match=r"policy\.model_cfg\.encoder: must be one of auto, mlp, cnn, multi, .*got 'mpl'"
    ):
        load_config("ppo_cartpole", ["policy.model_cfg.encoder=mpl"])
    with pytest.raises(ConfigError, match=r"encoder: .*did you mean 'mlp'"):
        load_config("ppo_cartpole", ["policy.model_cfg.encoder=mpl"])
    with pytest.raises(ConfigError, match=r"encoder_cfg is for an encoder of your own, and encoder is 'auto'"):
        load_config("ppo_cartpole", ["policy.model_cfg.encoder_cfg.width=3"])
