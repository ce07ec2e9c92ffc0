"""Small real envs and policies that the tests of several rooms share, importable by worker processes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlightning.config import EnvConfig
from rlightning.env import BaseEnv
from rlightning.policy.base_policy import BasePolicy
from rlightning.types import EnvMeta, EnvRet, PolicyResponse
from tests.env.doubles import CountingEnv

__all__ = ["LINE_META", "CountingEnv", "LineEnv", "LinearPolicy"]

LINE_META = EnvMeta("line", gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1, 1, (2,)), 1, 5)


class LineEnv(BaseEnv):
    """Points that move by their actions; after 5 steps each is truncated and starts anew at once, where it began."""

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        self.meta = EnvMeta("line", LINE_META.observation_space, LINE_META.action_space, config.num_envs, 5)
        self.start = np.zeros((config.num_envs, 2), np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.start = np.stack([np.random.default_rng(one).random(2, np.float32) for one in seed])
        self.t, self.x = 0, self.start.copy()
        return EnvRet.from_reset(self.x, len(self.x))

    def step(self, response):
        self.t, self.x = self.t + 1, self.x + response.action_for_env
        rows, is_over, final = len(self.x), self.t % 5 == 0, self.x
        never, cut = np.zeros(rows, np.bool_), np.full(rows, is_over)
        if is_over:
            self.x = self.start.copy()
        return EnvRet(self.x, -np.abs(final).sum(1), never, cut, never, final if is_over else None)


class LinearPolicy(BasePolicy):
    """A linear map of the observation plus noise, or its largest output where actions are discrete.

    It learns to answer 0, with Adam and a learning rate that falls linearly to 0. ``seen`` counts the transitions it
    was trained on: a buffer that belongs to the policy itself.
    """

    def construct_network(self, env_meta, *args, **kwargs):
        meta = env_meta if env_meta is not None else LINE_META
        self.is_discrete = isinstance(meta.action_space, gym.spaces.Discrete)
        outputs = int(meta.action_space.n) if self.is_discrete else meta.action_space.shape[0]
        self.net = nn.Linear(meta.observation_space.shape[0], outputs)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.forwards = 0

    def setup_optimizer(self, optim_cfg):
        self.optimizer = torch.optim.Adam(self.net.parameters(), self.train_config.lr)
        epochs = self.train_config.max_epochs
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, epochs)

    def rollout_step(self, env_ret, *, deterministic=False):
        self.forwards += 1
        action = self.net(env_ret.observation)
        if not deterministic:
            action = action + torch.randn(action.shape, generator=self.generator)
        return PolicyResponse(action.argmax(1) if self.is_discrete else action)

    def update_dataset(self, data):
        self.dataset = data

    def train(self, *args, **kwargs):
        observation = self.dataset["observation"].flatten(0, 1)
        loss = self.net(observation).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.seen += len(observation)
        return {"loss": loss.item()}

    def count_forwards(self):
        return self.forwards
