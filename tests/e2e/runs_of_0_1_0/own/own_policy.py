"""A policy of one's own, as a user of 0.1.0 wrote it: a linear actor with REINFORCE."""

import torch
from torch import nn

from rlightning import BasePolicy, PolicyResponse, register


@register("policy", "linear_reinforce")
class LinearReinforce(BasePolicy):
    """Push up the log-probability of actions in proportion to the reward of their rollout."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.actor = nn.Linear(env_meta.observation_space.shape[0], int(env_meta.action_space.n))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def setup_optimizer(self, optim_cfg):
        self.optimizer = torch.optim.Adam(self.parameters(), self.train_config.lr)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, 10)

    def rollout_step(self, env_ret, *, deterministic=False):
        probs = self.actor(env_ret.observation).softmax(-1)
        if deterministic:
            return PolicyResponse(probs.argmax(-1))
        return PolicyResponse(torch.multinomial(probs, 1, generator=self.generator)[:, 0])

    def update_dataset(self, data):
        self.dataset = data

    def train(self, *args, **kwargs):
        data = self.dataset
        log_probs = self.actor(data["observation"]).log_softmax(-1)
        chosen = log_probs.gather(-1, data["action"][..., None].long())[..., 0]
        loss = -(chosen * data["reward"]).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.seen += data["reward"].numel()
        return {"train/loss": loss.item()}

    def extra_training_state(self):
        return {"note": "of 0.1.0"}
