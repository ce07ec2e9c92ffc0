"""All that learns or acts is saved, restored, equal on all train policies and compared, whichever object holds it."""

import functools
import logging
import weakref
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.errors import CheckpointError, ProtocolError, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.runtime import as_handle
from tests.policy.crew import EVERYWHERE, Crew, crews, leave_groups
from tests.policy.policies import Bare, Entropic, Peer, batch
from tests.policy.travel import Journey

TRAIN = TrainConfig(max_epochs=10, lr=1.0)
ONLY_OPTIMIZED = ["self.log_alpha", "self.bounds.0", "self.alpha_optimizer.0.2"]
crew = pytest.fixture(scope="module", params=EVERYWHERE[:2])(crews)


def ask_all(policies, method, *args):
    return [as_handle(policy).call(method, *args).result(60) for policy in policies]


def train(group, *values, **options):
    group.update_dataset([torch.tensor(value) for value in values])
    return group.train(**options)


def alone(cls=Entropic, role=PolicyRole.TRAIN):
    policy = cls(PolicyConfig(), role)
    if role is PolicyRole.TRAIN:
        policy.init_train(TRAIN)
    else:
        policy.init_eval()
    return policy


def learn(policy, *values):
    for value in values:
        policy._update_dataset(torch.tensor([value]))
        policy._train()


# Saved and restored


def test_what_no_module_holds_is_saved_and_restored(tmp_path):
    whole = alone()
    learn(whole, 1.0, 2.0)
    whole.save_checkpoint(tmp_path / "c")
    resumed = alone()
    assert resumed.get_all() != whole.get_all()
    resumed.load_checkpoint(tmp_path / "c")
    for policy in (whole, resumed):
        learn(policy, 3.0)
    assert resumed.get_all() == whole.get_all()
    assert list(whole.get_training_state()["learned"]) == ONLY_OPTIMIZED
    assert list(whole.get_training_state()["listed"]) == ["table.values"]


def test_an_eval_policy_takes_what_its_author_lists_from_a_learners_state():
    source, policy = alone(), alone(role=PolicyRole.EVAL)
    learn(source, 5.0)
    policy.load_training_state(source.get_training_state(), act_only=True)
    assert policy.get_bundle_digest() == source.get_bundle_digest()
    assert policy.table.tolist() == [5.0, 5.0]


class Converting(Bare):
    """Sends its weights in half precision, beside a list of numbers that it makes tensors of."""

    steps = (0, 0)

    def get_trainable_parameters(self):
        return {
            "net": {"weight": self.net.weight.half(), "bias": self.net.bias.half()},
            "steps": {"held": torch.tensor(self.steps)},
        }

    def load_state_dict(self, state_dict, *args, **kwargs):
        self.net.load_state_dict(state_dict["net"])
        self.steps = tuple(state_dict["steps"]["held"].tolist())


def test_what_an_author_makes_tensors_of_is_restored_by_the_authors_method_and_modules_keep_their_digits():
    source, policy = alone(Converting), alone(Converting)
    source.steps = (3, 4)
    policy.load_training_state(source.get_training_state())
    assert policy.steps == (3, 4)
    assert torch.equal(policy.net.weight, source.net.weight)


def test_a_state_without_what_no_module_holds_is_taken_and_it_is_said(caplog):
    source, policy = alone(), alone()
    learn(source, 1.0)
    state = {name: part for name, part in source.get_training_state().items() if name not in ("learned", "listed")}
    before = policy.get_all()[0]
    with caplog.at_level(logging.WARNING):
        policy.load_training_state(state)
    assert policy.get_weight() == source.get_weight()
    assert [policy.get_all()[0][name] for name in ONLY_OPTIMIZED] == [before[name] for name in ONLY_OPTIMIZED]
    assert all(name in caplog.text for name in (*ONLY_OPTIMIZED, "table.values"))


def test_a_tensor_that_cannot_be_copied_is_named():
    class Tiny(Bare):
        def construct_network(self, env_meta, *args, **kwargs):
            self.register_buffer("codes", torch.zeros(2, dtype=torch.uint8).view(torch.uint4))

    with pytest.raises(CheckpointError, match=r"self\.codes cannot be stored: .*UInt4"):
        alone(Tiny).get_training_state()


def test_what_is_listed_and_neither_a_tensor_nor_an_array_is_named():
    class Listing(Bare):
        def get_trainable_parameters(self):
            return {"net": {"weight": self.net.weight, "rate": 0.5}}

    with pytest.raises(ProtocolError, match=r"lists net\.rate, a float: make it a tensor or an array"):
        alone(Listing)


def test_what_only_an_optimizer_holds_moves_with_its_state():
    policy = alone()
    journey = Journey()
    policy._memory = journey.memory()
    expected = policy.get_all()
    policy.offload_optimizer()
    # 1 + 2 + 1 numbers of 4 bytes.
    assert journey.out == 16
    assert policy.get_all() == expected
    policy.reload_optimizer()
    assert journey.back == 16
    assert policy.get_all() == expected


# Equal on all train policies


@pytest.mark.parametrize("order", ["groups first", "init first"])
def test_train_policies_start_equal_without_a_seed(crew, order):
    group = crew.group(Entropic, seed=None)
    leave_groups(group.train_list)
    if order == "groups first":
        group.init_comm_group()
        group.init(TRAIN)
    else:
        group.init(TRAIN)
        group.init_comm_group()
    first, second = ask_all(group.train_list, Entropic.get_all)
    assert first == second
    train(group, [1.0], [2.0])
    first, second = ask_all(group.train_list, Entropic.get_all)
    assert first == second


def test_what_no_module_holds_is_averaged_compared_and_carried_by_changes_of_roles(crew):
    group = crew.group(Entropic)
    group.init_comm_group()
    group.init(TRAIN)
    group.sync_weights()
    start = ask_all(group.train_list, Entropic.get_all)[0][0]
    # The gradient is the mean of 1 and 3; the table is that of the first one.
    train(group, [1.0], [3.0])
    group.sync_weights()
    assert group.compare_weights() == []
    group.convert_eval_to_train(1)
    states = ask_all(group.train_list, Entropic.get_all)
    assert states[0] == states[1] == states[2]
    assert states[0][0]["self.log_alpha"] == pytest.approx([start["self.log_alpha"][0] - 2.0])
    assert states[0][0]["table.values"] == [1.0, 1.0]
    members, learners = group._members, group._members.learners
    members.collective_call(learners, Entropic.check_ranks)
    for name in ("self.alpha_optimizer.0.2", "table.values"):
        ask_all(group.train_list[1:2], Entropic.spoil, name)
        with pytest.raises(WorkerError, match=f"train policy 1 differs .* 1 of 6 tensors: {name}"):
            members.collective_call(learners, Entropic.check_ranks)
        group.init_comm_group()
    group.convert_train_to_eval(1)


@pytest.mark.parametrize("learners", [1, 2])
def test_a_train_policy_that_joins_takes_what_no_module_holds_from_the_first(learners):
    group = Crew("local").group(Entropic, learners, 1, seed=None)
    group.init_comm_group()
    group.init(TRAIN)
    train(group, *[[2.0]] * learners)
    expected = group.train_list[0].get_all()
    group.push(Entropic(group.config, PolicyRole.TRAIN), PolicyRole.TRAIN)
    assert [policy.get_all() for policy in group.train_list] == [expected] * (learners + 1)
    group.pop(PolicyRole.TRAIN)
    train(group, *[[2.0]] * learners)
    assert len({str(policy.get_all()) for policy in group.train_list}) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_groups_that_are_formed_again_after_a_fault_begin_equal(crew, rank):
    group = crew.group(Entropic, actors=0)
    group.init_comm_group()
    group.init_train(TRAIN)
    train(group, [1.0], [3.0])
    with pytest.raises(WorkerError, match=f"train policy {rank} cannot"):
        train(group, [1.0], [3.0], stop_on=rank)
    first, second = ask_all(group.train_list, Entropic.get_all)
    assert first[0] != second[0]  # between the backward pass and the step
    group.init_comm_group()
    expected, second = ask_all(group.train_list, Entropic.get_all)
    assert expected == second
    assert expected[0] == first[0]
    train(group, [1.0], [3.0])
    assert len(set(map(str, ask_all(group.train_list, Entropic.get_all)))) == 1


def test_several_train_policies_without_a_group_do_not_train(crew):
    group = crew.group(Peer, actors=0)
    leave_groups(group.train_list)
    group.init_train(TRAIN)
    with pytest.raises(ProtocolError, match=r"2 train policies .* no group.*call PolicyGroup\.init_comm_group"):
        train(group, [1.0], [2.0])
    group.init_comm_group()
    assert train(group, [1.0], [3.0])["weight"] == pytest.approx(2.0)


# Refused


@dataclass
class Helper:
    """An object of the author's."""

    parts: object = None


@dataclass(slots=True)
class Nested:
    """Another one."""

    helper: Helper = field(default_factory=Helper)


CONTAINERS = {
    "list": (lambda net: [net], r"Hiding\.held\.0 holds a Linear"),
    "dict": (lambda net: {"q": net}, r"Hiding\.held\.q holds a Linear"),
    "tuple": (lambda net: (1, (net,)), r"Hiding\.held\.1\.0 holds a Linear"),
    "deque": (lambda net: deque([net]), r"Hiding\.held\.0 holds a Linear"),
    "helper": (Helper, r"Hiding\.held\.parts holds a Linear"),
    "helper of helpers": (lambda net: Nested(Helper({"q": net})), r"Hiding\.held\.helper\.parts\.q holds a Linear"),
    "parameter": (
        lambda net: [net.weight],
        r"Hiding\.held\.0 holds a Parameter .*use nn\.ParameterList or nn\.ParameterDict",
    ),
}


def hiding(hide, optimizes=True):
    class Hiding(Bare):
        def construct_network(self, env_meta, *args, **kwargs):
            super().construct_network(env_meta)
            self.held = hide(nn.Linear(4, 2))

        def setup_optimizer(self, optim_cfg):
            self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

    return Hiding


@pytest.mark.parametrize("role", PolicyRole)
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_module_out_of_sight_is_refused_at_the_start(container, role):
    hide, words = CONTAINERS[container]
    with pytest.raises(ProtocolError, match=words):
        alone(hiding(hide), role)


def test_an_optimizers_parameter_of_a_module_out_of_sight_is_refused_at_the_start():
    class Closed(Bare):
        def setup_optimizer(self, optim_cfg):
            hidden = nn.Linear(4, 2)
            self.answer = lambda observation: hidden(observation)
            self.optimizer = torch.optim.SGD([*self.net.parameters(), *hidden.parameters()], 0.1)

    with pytest.raises(ProtocolError, match="an optimizer of Closed updates weight of a Linear that is not registered"):
        alone(Closed)


class Seen(Bare):
    """Holds in other places too what the framework knows, and what has no weights."""

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.nets, self.parameters_of = [self.net, self.frozen], list(self.net.parameters())
        self.helper, self.activations = Helper({"q": self.net}), [nn.Tanh(), nn.Identity()]
        self.back, self.selves = Helper(self), [weakref.proxy(self)]
        self.call = functools.partial(self.net)
        self.logger = logging.getLogger("seen")
        self.loop = {"numbers": np.zeros(2)}
        self.loop["loop"] = self.loop
        self.hidden = {"named": nn.Linear(2, 2)}
        self.model_list = [("net", self.net), ("named", self.hidden["named"])]

    def setup_optimizer(self, optim_cfg):
        self.steps = [torch.optim.SGD(self.net.parameters(), 0.1)]
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.steps[0])


class ListedInFull(Bare):
    """Says itself where the tensors of a module in a list are."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.nets = [nn.Linear(2, 2)]

    def get_trainable_parameters(self):
        return {"first": {name: one.detach() for name, one in self.nets[0].named_parameters()}}


@pytest.mark.parametrize("role", PolicyRole)
@pytest.mark.parametrize("cls", [Seen, ListedInFull])
def test_modules_that_are_known_may_be_held_anywhere(cls, role):
    alone(cls, role)


def test_actors_act_with_a_table_that_is_an_array():
    group = Crew("local").group(Entropic, 1, 2)
    group.init(TRAIN)
    learn(group.train_list[0], 2.0)
    group.sync_weights()
    assert group.compare_weights() == []
    answers = group.rollout_batch(batch([1, 1])).items
    assert [answer.result().action.tolist() for answer in answers] == [[[2.0, 2.0]]] * 2


@pytest.mark.parametrize("place", ["a helper", "a dict in a list"])
def test_an_optimizer_out_of_sight_is_refused_at_the_start(place):
    class Deep(Bare):
        def setup_optimizer(self, optim_cfg):
            optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
            self.parts = SimpleNamespace(optimizer=optimizer) if place == "a helper" else [{"optimizer": optimizer}]

    policy = Deep(PolicyConfig(), PolicyRole.TRAIN)
    with pytest.raises(ProtocolError, match=r"Deep.parts.*optimizer is a Adam that no checkpoint would hold"):
        policy.init_train(TrainConfig())
