"""A network of one's own in front of the heads of PPO.

rlightning train ppo_cartpole imports=[own_model.py] policy.model_cfg.encoder=residual
"""

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlightning import register


@register("model", "residual")
class Residual(nn.Module):
    """Residual blocks with layer normalisation over a vector: [B, inputs] to [B, width]."""

    def __init__(self, observation_space: gym.spaces.Box, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.out_features = width
        self.first = nn.Linear(observation_space.shape[0], width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)
        )

    def forward(self, observation: Tensor) -> Tensor:
        features = torch.tanh(self.first(observation))
        for block in self.blocks:
            features = features + block(features)
        return features
