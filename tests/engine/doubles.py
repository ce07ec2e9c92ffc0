"""Small real policies and engines, importable by worker processes; the envs for them are registered, too."""

from __future__ import annotations

import copy

import torch
from torch import nn

import tests.engine.envs  # noqa: F401 (registers what the configurations name)
from rlightning.config import ClusterConfig, Config, EnvConfig, EvalConfig, PolicyConfig, TrainConfig
from rlightning.engine.sync_engine import SyncEngine
from rlightning.models.normalizer import RunningNormalizer
from rlightning.policy.base_policy import BasePolicy
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


class SpyEngine(SyncEngine):
    """Writes down what it does."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.did: list[str] = []

    def collect(self):
        self.did.append("collect")
        return super().collect()

    def learn(self):
        self.did.append("learn")
        return super().learn()

    def publish(self):
        self.did.append("publish")
        return super().publish()

    def evaluate(self):
        self.did.append("evaluate")
        return super().evaluate()


class LazyEngine(SpyEngine):
    """Forgets to publish after the first time."""

    def publish(self):
        return super().publish() if "publish" not in self.did else 0


class Notebook:
    """A recorder that keeps everything."""

    def __init__(self):
        self.rows: list[tuple[int, int, dict[str, float]]] = []
        self.saves: list[tuple[int, bool]] = []
        self.on_log = lambda epoch: None

    def log(self, epoch, env_steps, metrics):
        self.rows.append((epoch, env_steps, dict(metrics)))
        self.on_log(epoch)

    def save(self, epoch, states, *, best):
        self.saves.append((epoch, best))


REMOTE = dict.fromkeys(("remote_env", "remote_eval", "remote_storage", "remote_train"), True)
CHEAP = {"train_num_cpus": 0.01, "eval_num_cpus": 0.01}


def config(*, env=None, policy=None, cluster=None, evaluation=None, engine="syncrl", seed=0, **train):
    """Build a small configuration; each section takes what differs from the usual one."""
    envs = env if isinstance(env, list) else [env or {}]
    usual = {"name": "uneven", "backend": "uneven", "num_envs": 2, "num_cpus": 0.01}
    return Config(
        seed=seed,
        engine=engine,
        env=[EnvConfig(**{**usual, **kind}) for kind in envs],
        policy=PolicyConfig(**{"type": "coin", **CHEAP, **(policy or {})}),
        cluster=ClusterConfig(**(cluster or {})),
        evaluation=EvalConfig(**{"episodes": 2, "num_envs": 2, **(evaluation or {})}),
        train=TrainConfig(**{"max_epochs": 3, "max_rollout_steps": 5, "batch_size": 5, "lr": 0.01, **train}),
    )
