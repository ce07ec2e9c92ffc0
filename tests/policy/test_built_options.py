"""A learning rate and other options that were changed take the place of those of a checkpoint."""

import pytest
import torch

from rlightning.config import OptimConfig, PolicyConfig, TrainConfig
from rlightning.policy.base_policy import PolicyRole
from tests.policy.policies import Bare


class Scheduled(Bare):
    """Two parameter groups, one with a rate of its own, under a schedule or without."""

    schedule = True

    def setup_optimizer(self, optim_cfg):
        groups = [{"params": [self.net.weight]}, {"params": [self.net.bias], "lr": 0.5}]
        self.optimizer = torch.optim.SGD(groups, lr=self.train_config.lr, weight_decay=optim_cfg.weight_decay)
        if self.schedule:
            total = self.train_config.max_epochs
            self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.0, total)


class Constant(Scheduled):
    schedule = False


def learner(cls, lr, max_epochs=10, decay=0.0):
    policy = cls(PolicyConfig(optim_cfg=OptimConfig(weight_decay=decay)), PolicyRole.TRAIN)
    policy.init_train(TrainConfig(lr=lr, max_epochs=max_epochs))
    return policy


def rates(policy):
    return [group["lr"] for group in policy.optimizer.param_groups]


def test_a_changed_rate_replaces_the_restored_one_and_no_other():
    restored = learner(Constant, lr=0.01, decay=0.3)
    restored.load_training_state(learner(Constant, lr=0.1).get_training_state())
    assert rates(restored) == pytest.approx([0.01, 0.5])
    assert [group["weight_decay"] for group in restored.optimizer.param_groups] == [0.3, 0.3]


def test_an_unchanged_rate_is_that_of_the_checkpoint():
    before = learner(Constant, lr=0.1)
    before.optimizer.param_groups[0]["lr"] = 0.07  # a schedule of the author's own
    restored = learner(Constant, lr=0.1)
    restored.load_training_state(before.get_training_state())
    assert rates(restored) == [0.07, 0.5]


def test_a_schedule_goes_on_from_the_changed_rate_and_over_the_changed_number_of_epochs():
    before = learner(Scheduled, lr=0.1)
    for _ in range(5):
        before.optimizer.step()
        before.scheduler.step()
    assert rates(before) == pytest.approx([0.05, 0.25])
    restored = learner(Scheduled, lr=0.2, max_epochs=20)
    restored.load_training_state(before.get_training_state())
    # Twice the rate from now on, for the group that has it from train.lr.
    assert rates(restored) == pytest.approx([0.1, 0.25])
    assert restored.scheduler.base_lrs == pytest.approx([0.2, 0.5])
    assert restored.scheduler.total_iters == 20
    assert restored.scheduler.last_epoch == 5


def test_a_state_of_a_version_that_stored_no_options_changes_nothing():
    state = learner(Constant, lr=0.1).get_training_state()
    del state["built"]
    restored = learner(Constant, lr=0.01)
    restored.load_training_state(state)
    assert rates(restored) == [0.1, 0.5]


class Cosine(Scheduled):
    """A schedule whose length is derived from the number of epochs."""

    def setup_optimizer(self, optim_cfg):
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=self.train_config.lr)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10 * self.train_config.max_epochs)


class OneCycle(Scheduled):
    """A schedule that keeps the largest rate in the optimizer."""

    def setup_optimizer(self, optim_cfg):
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=self.train_config.lr)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, self.train_config.lr, total_steps=50)


def test_what_is_derived_from_a_changed_option_is_used_as_well():
    longer = learner(Cosine, lr=0.1, max_epochs=12)
    longer.load_training_state(learner(Cosine, lr=0.1, max_epochs=6).get_training_state())
    assert longer.scheduler.T_max == 120
    slower = learner(OneCycle, lr=1e-4)
    slower.load_training_state(learner(OneCycle, lr=1e-3).get_training_state())
    assert slower.optimizer.param_groups[0]["max_lr"] == 1e-4
    assert slower.optimizer.param_groups[0]["lr"] == pytest.approx(1e-4 / 25)


def test_a_policy_that_goes_back_to_a_state_of_its_own_takes_its_rates_as_they_were():
    policy = learner(Scheduled, lr=0.1)
    state = policy.get_training_state()
    for _ in range(5):
        policy.optimizer.step()
        policy.scheduler.step()
    policy.load_training_state(state)
    assert rates(policy) == pytest.approx([0.1, 0.5])
