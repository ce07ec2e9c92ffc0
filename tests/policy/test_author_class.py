"""What an author may take for something of the framework's, or forget, is told when the class is made or built."""

import functools
import inspect
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from rlightning.checkpoint import save_state
from rlightning.config import PolicyConfig, TrainConfig
from rlightning.errors import ProtocolError, ReservedName, WorkerError
from rlightning.policy.author_checks import HOOKS, reserved_names
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from tests.doubles import LinearPolicy
from tests.policy.policies import Bare, batch

TRAIN = TrainConfig(max_epochs=10, lr=0.1)
CONFIG = PolicyConfig()


def learner(cls):
    policy = cls(CONFIG, PolicyRole.TRAIN)
    policy.init_train(TRAIN)
    return policy


# Names


@pytest.mark.parametrize("name", ["_train", "_tensors", "_memory", "_gate", "_timer", "version", "config"])
def test_a_method_with_a_name_that_the_framework_needs_is_refused_when_the_class_is_made(name):
    proposed = ("_own" if name.startswith("_") else "own_") + name
    with pytest.raises(ReservedName, match=rf"Mine uses names .*: {name} \(call it {proposed}\)"):
        type("Mine", (Bare,), {name: lambda self: None})
    with pytest.raises(ReservedName, match=f"Mixin uses .* {name} "):
        type("Mine", (type("Mixin", (), {name: property(lambda self: None)}), Bare), {})
    assert proposed not in reserved_names(BasePolicy)


def test_a_class_attribute_that_the_constructor_would_overwrite_is_refused():
    with pytest.raises(ReservedName, match="rollout_mode"):

        class Overlapping(Bare):
            rollout_mode = "async"


def test_hooks_of_the_contract_and_names_of_ones_own_are_free():
    class Mine(Bare):
        dataset = None

        def _rollout(self, env_ret, *args, **kwargs):
            return super()._rollout(env_ret, *args, **kwargs)

        def _loss(self):
            return 0.0

        def init_eval(self, eval_config=None, env_meta=None):
            return super().init_eval(eval_config, env_meta)

    assert learner(Mine)._loss() == 0.0
    assert all(hasattr(BasePolicy, name) for name in HOOKS)


def test_methods_of_the_framework_that_somebody_wraps_in_a_subclass_are_still_its_own():
    # As Ray does for the class of an actor.
    methods = inspect.getmembers(BasePolicy, inspect.isfunction)
    wrapped = {name: functools.wraps(method)(lambda *args, **kwargs: None) for name, method in methods}
    type("Actor", (Bare,), wrapped)


class InConstructor(Bare):
    def __init__(self, config, role_type):
        super().__init__(config, role_type)
        self._memory = []


class InNetworks(Bare):
    def construct_network(self, env_meta):
        super().construct_network(env_meta)
        self._gate = nn.Linear(2, 2)
        self.version = "1.0"


def test_an_attribute_with_a_name_that_the_framework_needs_is_refused():
    with pytest.raises(ReservedName, match=r"InConstructor uses .*: _memory \(call it _own_memory\)"):
        learner(InConstructor)
    with pytest.raises(ReservedName, match=r"_gate \(call it _own_gate\), version \(call it own_version\)"):
        learner(InNetworks)


# The constructor


class WithoutSuper(Bare):
    def __init__(self, config, role_type):
        self.alpha = 0.1


class ModulesBeforeSuper(Bare):
    def __init__(self, config, role_type):
        self.net = nn.Linear(2, 2)
        super().__init__(config, role_type)


class NetworksInConstructor(Bare):
    def __init__(self, config, role_type):
        super().__init__(config, role_type)
        self.critic = nn.Linear(2, 2)

    def construct_network(self, env_meta):
        pass


class OwnError(Bare):
    def __init__(self, config, role_type):
        super().__init__(config, role_type)
        self.no_such_attribute  # noqa: B018 (it fails)


@pytest.mark.parametrize(
    ("cls", "error", "message"),
    [
        (WithoutSuper, ProtocolError, r"WithoutSuper\.__init__ must call super\(\)\.__init__\(config, role_type\)"),
        (ModulesBeforeSuper, ProtocolError, r"ModulesBeforeSuper\.__init__ must call super\(\)"),
        (NetworksInConstructor, ProtocolError, r"__init__ builds critic: build networks in construct_network"),
        (OwnError, AttributeError, "no_such_attribute"),
    ],
)
def test_a_constructor_that_forgets_something_says_what(cls, error, message):
    with pytest.raises(error, match=message):
        cls(CONFIG, PolicyRole.TRAIN)


# Training


class Unpacking(Bare):
    def train(self):
        first, second = self.dataset
        return {"sum": first + second}


def test_train_before_update_dataset_says_which_call_comes_first():
    policy = learner(Unpacking)
    with pytest.raises(ProtocolError, match=r"Unpacking\.train failed, and self\.dataset is None: call update_dataset"):
        policy._train()
    assert (policy.epoch, policy.version) == (0, 0)
    policy._update_dataset((1, 2))
    assert policy._train() == {"sum": 3}
    # With data, an error is the author's.
    policy._update_dataset(3)
    with pytest.raises(TypeError, match="cannot unpack"):
        policy._train()
    group = PolicyGroup([learner(Unpacking)], [], CONFIG)
    with pytest.raises(WorkerError, match="call update_dataset") as caught:
        group.train()
    assert isinstance(caught.value.__cause__, ProtocolError)


class Reporting(Bare):
    def train(self):
        loss = self.net(torch.ones(2)).sum() * 0 + 2
        numbers = {"float32": np.float32(0.5), "int": 3, "int64": np.int64(4), "array": np.ones(1), "bool": np.True_}
        return {"loss": loss, **numbers, "name": "x", "many": np.zeros(3), "text": b"1", "nothing": None}


def test_metrics_may_have_a_gradient_and_be_numbers_of_any_kind():
    group = PolicyGroup([Reporting(CONFIG, PolicyRole.TRAIN)], [], CONFIG)
    with pytest.raises(ProtocolError, match="call train before mean_metrics"):
        group.mean_metrics()
    group.init_train(TRAIN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = group.train()
        assert (float(metrics["loss"]), metrics["loss"].requires_grad) == (2.0, False)
        means = group.mean_metrics()
    assert means == {"loss": 2.0, "float32": 0.5, "int": 3.0, "int64": 4.0, "array": 1.0, "bool": 1.0}


# Checkpoints


def test_a_policy_takes_its_part_of_a_checkpoint_of_a_run(tmp_path):
    source, actor = learner(LinearPolicy), LinearPolicy(CONFIG, PolicyRole.EVAL)
    group = PolicyGroup([source], [actor], CONFIG)
    group.init(TRAIN)
    group.sync_weights()
    group.update_dataset([{"observation": torch.ones(2, 3, 2)}])
    group.train()
    save_state(tmp_path / "run", {"policy": group.get_training_state(), "engine": {"epoch": 1}})
    source.save_checkpoint(tmp_path / "own")
    for folder in ("run", "own"):
        other = learner(LinearPolicy)
        other.load_checkpoint(tmp_path / folder)
        assert other.get_bundle_digest() == source.get_bundle_digest()
        assert (other.epoch, other.scheduler.last_epoch) == (1, 1)
        acting = LinearPolicy(CONFIG, PolicyRole.EVAL)
        acting.init_eval()
        acting.load_checkpoint(tmp_path / folder)
        assert acting.get_bundle_digest() == source.get_bundle_digest()
        assert acting._rollout(batch([2]).items[0]).version == 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_hooks_with_the_signature_of_the_contract_are_called_with_that(mode):
    class Own(Bare):
        def _rollout(self, env_ret):
            self.asked = True
            return super()._rollout(env_ret)

        def _rollout_async(self, env_ret):
            self.asked = True
            return super()._rollout_async(env_ret)

    config = PolicyConfig(rollout_mode=mode)
    actor = Own(config, PolicyRole.EVAL)
    group = PolicyGroup([Own(config, PolicyRole.TRAIN)], [actor], config)
    group.init(TRAIN)
    group.sync_weights()
    answers = group.rollout_batch(batch([2])).values()
    assert len(answers[0].result().action) == 2
    assert actor.asked
    group.shutdown()


def test_what_train_raises_stays_what_it_is_where_data_came():
    class Keeps(Bare):
        def update_dataset(self, data):
            self.kept = data  # and no self.dataset

        def train(self, *args, **kwargs):
            return {}["no such loss"]

    policy = learner(Keeps)
    with pytest.raises(ProtocolError, match="call update_dataset"):
        policy._train()
    policy._update_dataset([1])
    with pytest.raises(KeyError, match="no such loss"):
        policy._train()
