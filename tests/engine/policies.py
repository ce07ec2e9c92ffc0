"""Small real policies, importable by worker processes, which need no more than torch for them."""

from __future__ import annotations

import asyncio
import copy

import torch
from torch import nn

from rlightning.models.normalizer import RunningNormalizer
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.row_state import RowState
from rlightning.registry import register
from rlightning.types import PolicyResponse


@register("policy", "coin")
class CoinPolicy(BasePolicy):
    """Samples from a linear layer; learns to answer 0 with Adam; fails where ``algo_cfg.fail`` says.

    Its exploration rate is a number that no module holds: it falls with every update and is stored as extra state.
    """

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Linear(env_meta.observation_space.shape[0], 2)
        self.register_buffer("epsilon", torch.ones(()))
        self.rate, self.calls = 1.0, {}

    def setup_optimizer(self, optim_cfg):
        self.optimizer = torch.optim.Adam(self.net.parameters(), self.train_config.lr)

    def rollout_step(self, env_ret, *, deterministic=False):
        self.fail("rollout")
        logits = self.net(env_ret.observation)
        best = logits.argmax(-1)
        if deterministic:
            return PolicyResponse(best)
        explores = torch.rand(len(best), generator=self.generator) < self.epsilon
        random = torch.randint(2, best.shape, generator=self.generator)
        return PolicyResponse(torch.where(explores, random, best))

    def postprocess(self, env_ret=None, policy_resp=None):
        self.fail("postprocess")
        return policy_resp

    def update_dataset(self, data):
        self.fail("update_dataset")
        self.dataset = data["observation"][data["valid"]]

    def train(self, *args, **kwargs):
        self.fail("train")
        loss = self.net(self.dataset).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.rate *= 0.9
        self.epsilon.fill_(self.rate)
        return {"train/policy_loss": loss.item(), "user/epsilon": self.rate}

    def load_state_dict(self, state_dict, *args, **kwargs):
        self.fail("load_state_dict")
        return super().load_state_dict(state_dict, *args, **kwargs)

    def extra_training_state(self):
        return {"rate": self.rate}

    def load_extra_training_state(self, state):
        self.rate = state["rate"]

    def fail(self, where):
        self.calls[where] = self.calls.get(where, 0) + 1
        if self.config.algo_cfg.get("fail") == where and self.calls[where] == 2:
            raise ZeroDivisionError(f"no {where} today")


@register("policy", "gambler")
class GamblerPolicy(CoinPolicy):
    """Draws from the global generator of torch, as ``torch.distributions`` do."""

    def rollout_step(self, env_ret, *, deterministic=False):
        return PolicyResponse(torch.distributions.Categorical(logits=self.net(env_ret.observation)).sample())


@register("policy", "careless")
class CarelessPolicy(CoinPolicy):
    """Changes one number of the weights that it is given."""

    def load_state_dict(self, state_dict, *args, **kwargs):
        super().load_state_dict(state_dict, *args, **kwargs)
        self.net.bias.data[0] += 1e-6


@register("policy", "replay")
class ReplayPolicy(CoinPolicy):
    """Q-learning from a memory of the last 64 transitions (Mnih et al. 2015), which no module holds."""

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.normalizer = RunningNormalizer(env_meta.observation_space.shape)
        self.target = copy.deepcopy(self.net)
        self.memory = {}

    def rollout_step(self, env_ret, *, deterministic=False):
        env_ret.observation = self.normalizer(env_ret.observation)
        return super().rollout_step(env_ret, deterministic=deterministic)

    def update_dataset(self, data):
        valid = data["valid"]
        self.normalizer.update(data["observation"][valid])
        for name in ("observation", "next_observation", "action", "reward", "terminated"):
            new = data[name][valid]
            self.memory[name] = torch.cat([self.memory.get(name, new[:0]), new])[-64:]
        self.dataset = self.memory

    def train(self, *args, **kwargs):
        for _ in range(4):
            rows = torch.randint(len(self.memory["reward"]), (8,), generator=self.generator)
            batch = {name: column[rows] for name, column in self.memory.items()}
            with torch.no_grad():
                best = self.target(self.normalizer(batch["next_observation"])).amax(-1)
                goal = batch["reward"] + 0.9 * best * ~batch["terminated"]  # what was truncated goes on
            q = self.net(self.normalizer(batch["observation"])).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
            loss = (q - goal).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer.param_groups[0]["lr"] = self.train_config.lr * (1 - (self.epoch + 1) / 100)
        self.rate *= 0.9
        self.epsilon.fill_(self.rate)
        return {"train/policy_loss": loss.item(), "user/epsilon": self.rate, "user/memory": len(self.memory["reward"])}

    def extra_training_state(self):
        return {**super().extra_training_state(), "memory": self.memory}

    def load_extra_training_state(self, state):
        super().load_extra_training_state(state)
        self.memory = state["memory"]


@register("policy", "slow_coin")
class SlowCoinPolicy(CoinPolicy):
    """Awaits before it answers."""

    async def rollout_step(self, env_ret, *, deterministic=False):
        await asyncio.sleep(0)
        return super().rollout_step(env_ret, deterministic=deterministic)

    async def ask(self, prompt) -> PolicyResponse:
        """A coroutine more."""


@register("policy", "recurrent")
class RecurrentPolicy(BasePolicy):
    """A GRU per row, beside a count of the steps of the episode, which the observation shows as well."""

    is_stateful = True

    def construct_network(self, env_meta, *args, **kwargs):
        self.cell = nn.GRUCell(env_meta.observation_space.shape[0], 4)
        self.hidden = RowState(torch.zeros(5))

    def setup_optimizer(self, optim_cfg):
        self.optimizer = None

    def rollout_step(self, env_ret, *, deterministic=False):
        before = self.hidden.get(env_ret)
        after = torch.cat([self.cell(env_ret.observation, before[:, :4]), before[:, 4:] + 1], -1)
        self.hidden.put(env_ret, after)
        return PolicyResponse((after[:, 0] > 0).long(), extras={"hidden": after})

    def update_dataset(self, data):
        self.dataset = data

    def train(self, *args, **kwargs):
        with torch.no_grad():
            self.cell.bias_ih += 0.1
        wrong = self.dataset["hidden"][..., 4] != self.dataset["observation"][..., 0] + 1
        total = self.dataset["hidden"][..., :4].double().square().sum()
        return {"user/wrong": wrong.sum().item(), "user/hidden": total.item()}

    def extra_training_state(self):
        return {"hidden": self.hidden.state()}

    def load_extra_training_state(self, state):
        self.hidden.load(state["hidden"])


@register("policy", "recurrent_async")
class AsyncRecurrentPolicy(RecurrentPolicy):
    """The same as a coroutine."""

    async def rollout_step(self, env_ret, *, deterministic=False):
        return super().rollout_step(env_ret, deterministic=deterministic)
