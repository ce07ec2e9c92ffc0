"""An algorithm of your own in one file: clipped actor-critic in its smallest form, on CartPole-v1, in half a minute.

    python examples/own_algorithm.py
    python examples/own_algorithm.py seed=3 cluster=ray env.num_workers=2

The class defines how to act and how to learn. The framework does the rest: processes, Ray, transport of weights to
actors, checkpoints, evaluation and logs.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from pydantic import Field
from tensordict import TensorDictBase
from torch import Tensor, nn

from rlightning import BasePolicy, Config, EnvMeta, EnvRet, PolicyResponse, assemble, launch, register
from rlightning.config import OptimConfig, Section
from rlightning.functional.advantages import gae


class Options(Section):
    """``policy.algo_cfg``: checked like every other option, and listed by ``rlightning check``."""

    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per step."""
    lam: float = Field(0.95, ge=0, le=1)
    """Lambda of the advantage estimate: 0 is one step, 1 the whole return."""
    hidden: int = Field(64, ge=1)
    """Units of each hidden layer."""
    passes: int = Field(8, ge=1)
    """Gradient steps per rollout, each on all of it."""
    clip: float = Field(0.2, gt=0)
    """How far a probability may move per rollout, as a ratio, with profit (Schulman et al. 2017)."""


@register("policy", "clipped_actor_critic")  # what policy.type calls it
class ClippedActorCritic(BasePolicy):
    """Towards actions that did better than the critic expected, a little per rollout."""

    AlgoOptions = Options

    def construct_network(self, env_meta: EnvMeta, *args: Any, **kwargs: Any) -> None:
        """Build actor and critic; every attribute that is a module is sent to the actors."""
        inputs = env_meta.observation_space.shape[0]
        self.actor = self._mlp(inputs, int(env_meta.action_space.n))
        self.critic = self._mlp(inputs, 1)
        nn.init.zeros_(self.actor[-1].weight)  # start with a fair coin

    def setup_optimizer(self, optim_cfg: OptimConfig) -> None:
        """Build the optimizer; only the learner has one."""
        self.optimizer = torch.optim.Adam(self.parameters(), self.train_config.lr)

    def rollout_step(self, env_ret: EnvRet, *, deterministic: bool = False) -> PolicyResponse:
        """Act: all random numbers come from ``self.generator``, so that every run can be repeated."""
        probs = self.actor(env_ret.observation).softmax(-1)
        if deterministic:
            return PolicyResponse(probs.argmax(-1))
        action = torch.multinomial(probs, 1, generator=self.generator)
        # What is under extras comes back in update_dataset.
        return PolicyResponse(action.squeeze(-1), extras={"log_prob": probs.gather(-1, action).squeeze(-1).log()})

    @torch.no_grad()
    def update_dataset(self, data: TensorDictBase) -> None:
        """Estimate advantages for a rollout of T steps of N envs, [T, N]."""
        value, next_value = self._value(data["observation"]), self._value(data["next_observation"])
        # After a terminated episode the value is 0; after one that a time limit cut it is not. Neither is joined to
        # the next episode, and a step that an env used for its reset is no transition.
        cut = data["terminated"] | data["truncated"] | ~data["valid"]
        options = self.algo_options
        advantage = gae(
            data["reward"], value, next_value, data["terminated"], cut, gamma=options.gamma, lam=options.lam
        )
        valid = data["valid"]
        self.dataset = data.select("observation", "action", "log_prob")[valid], advantage[valid], value[valid]

    def train(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Learn from the rollout, and return metrics."""
        rows, advantage, value = self.dataset
        weight = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        progress = self.epoch / self.train_config.max_epochs
        self.optimizer.param_groups[0]["lr"] = self.train_config.lr * (1.0 - progress)
        clip = self.algo_options.clip
        for _ in range(self.algo_options.passes):
            log_probs = self.actor(rows["observation"]).log_softmax(-1)
            log_prob = log_probs.gather(-1, rows["action"].unsqueeze(-1)).squeeze(-1)
            ratio = (log_prob - rows["log_prob"]).exp()
            policy_loss = -torch.min(ratio * weight, ratio.clamp(1 - clip, 1 + clip) * weight).mean()
            value_loss = (self._value(rows["observation"]) - advantage - value).square().mean()
            self.optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(self.actor.parameters(), 0.5)
            self.optimizer.step()
        # Names of the metrics reference are used as they are; other names have the prefix user/.
        return {"train/policy_loss": policy_loss.item(), "train/value_loss": value_loss.item()}

    def _value(self, observation: Tensor) -> Tensor:
        return self.critic(observation).squeeze(-1)

    def _mlp(self, inputs: int, outputs: int) -> nn.Sequential:
        hidden = self.algo_options.hidden
        layers = nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, outputs)
        return nn.Sequential(*layers)


SETTINGS = [
    f"imports=['{__file__}']",  # so that `rlightning eval` and `resume` find the class again
    "env.name=CartPole-v1",
    "env.num_envs=16",
    "policy.type=clipped_actor_critic",
    "~policy.model_cfg",  # those of the preset are PPO's
    "~policy.algo_cfg",
    "~policy.optim_cfg",
    "train.max_rollout_steps=32",
    "train.max_epochs=250",  # x 16 envs x 32 steps = 128,000 steps
    "train.lr=3e-3",
    "train.eval_interval=0",
    "train.save_interval=0",
]
"""What differs from the preset, as on the command line; a YAML file of your own does the same."""


def main(config: Config) -> None:
    """Build all parts of the run, and run it; train_ppo.py builds them one by one."""
    with assemble(config) as engine:
        engine.run()


if __name__ == "__main__":
    launch(main, "ppo_cartpole", [*SETTINGS, *sys.argv[1:]])
