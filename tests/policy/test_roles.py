"""Policies change their roles at run time, and training goes on from where it was."""

import pytest
import torch

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.errors import ProtocolError, WorkerError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.networks import change_role
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from tests.policy.crew import HERE_AND_THERE, Crew, crews
from tests.policy.policies import Peer, batch

crew = pytest.fixture(scope="module", params=HERE_AND_THERE)(crews)


def train(group, *values):
    group.update_dataset([torch.tensor(value) for value in values])
    return group.train()["weight"]


def push(group):
    version = group.sync_weights()
    group.wait_for_eval_weight_update()
    return version


def answers(group, count=4):
    return gather(group.rollout_batch(batch([1] * count)).items, 60)


def test_an_actor_becomes_a_learner_and_an_actor_again(crew):
    # The gradient is w minus the mean of the numbers; SGD with rate 0.5 and momentum 0.5.
    group = crew.group(Peer)
    group.init_comm_group()
    group.init(TrainConfig(max_epochs=10, lr=0.5))
    first, second = (as_handle(policy) for policy in group.train_list)
    first.call(Peer.set_weight, 0.0).result(60)
    second.call(Peer.set_weight, 0.0).result(60)
    # v = -2, w = 1; then v = -1 + (1 - 3) = -3, w = 2.5.
    assert train(group, [2.0], [2.0]) == pytest.approx(1.0)
    assert train(group, [1.0], [5.0]) == pytest.approx(2.5)
    assert push(group) == 2
    group.convert_eval_to_train(1)
    assert (len(group.train_list), len(group.eval_list)) == (3, 1)
    assert {answer.version for answer in answers(group)} == {2}
    # v = -1.5 + (2.5 - 3) = -2, w = 3.5: three learners, one mean, and the momentum of before on all of them.
    assert train(group, [1.0], [2.0], [6.0]) == pytest.approx(3.5)
    weights = [as_handle(policy).call(Peer.get_weight).result(60) for policy in group.train_list]
    assert weights == pytest.approx([3.5] * 3)
    assert push(group) == 3
    group.convert_train_to_eval(2)
    assert (len(group.train_list), len(group.eval_list)) == (1, 3)
    assert {answer.version for answer in answers(group)} == {3}
    assert group.compare_weights() == []
    # v = -1 + (3.5 - 4.5) = -2, w = 4.5.
    assert train(group, [4.5]) == pytest.approx(4.5)
    assert push(group) == 4
    assert group.compare_weights() == []
    # As other tests expect to find it.
    second.run(change_role, PolicyRole.TRAIN).result(60)


def test_roles_that_cannot_change_are_refused():
    config = PolicyConfig()
    group = PolicyGroup([Peer(config, PolicyRole.TRAIN)], [Peer(config, PolicyRole.EVAL)], config)
    with pytest.raises(ProtocolError, match="call init before"):
        group.convert_eval_to_train(1)
    group.init(TrainConfig())
    with pytest.raises(ProtocolError, match="2 policies cannot become train policies: 1 are there, and 0 must stay"):
        group.convert_eval_to_train(2)
    with pytest.raises(ProtocolError, match="1 policies cannot become eval policies: 1 are there, and 1 must stay"):
        group.convert_train_to_eval(1)
    group.convert_eval_to_train(0)
    assert (len(group.train_list), len(group.eval_list)) == (1, 1)


def test_a_policy_with_another_role_must_be_initialised_for_it():
    policy = Peer(PolicyConfig(), PolicyRole.TRAIN)
    policy.init_train(TrainConfig())
    change_role(policy, PolicyRole.EVAL)
    assert not policy.is_initialized()
    assert not hasattr(policy, "optimizer")
    with pytest.raises(ProtocolError, match="init_train is for policies of role 'train'"):
        policy.init_train(TrainConfig())
    policy.init_eval()
    assert isinstance(policy, BasePolicy)


# Policies that come and go


def started(learners=1, actors=1, config=None):
    """A group of this process whose weights are 0; its rate is 0.5, and its momentum 0.5."""
    config = PolicyConfig() if config is None else config
    roles = [PolicyRole.TRAIN] * learners + [PolicyRole.EVAL] * actors
    policies = [Peer(config, role) for role in roles]
    group = PolicyGroup(policies[:learners], policies[learners:], config, call_timeout_s=20.0)
    group.init_comm_group()
    group.init(TrainConfig(max_epochs=10, lr=0.5))
    for policy in group.train_list:
        policy.set_weight(0.0)
    return group


@pytest.mark.parametrize("is_initialised", [False, True])
@pytest.mark.parametrize("learners", [1, 2])
def test_a_train_policy_that_joins_goes_on_from_the_state_of_the_others(learners, is_initialised):
    group = started(learners)
    # The gradient is w minus the mean: v = -2, w = 1.
    assert train(group, *[[2.0]] * learners) == pytest.approx(1.0)
    newcomer = Peer(group.config, PolicyRole.TRAIN)
    if is_initialised:
        newcomer.init_train(TrainConfig(max_epochs=10, lr=0.5))
    group.push(newcomer, PolicyRole.TRAIN)
    assert group.train_list[-1] is newcomer
    assert (newcomer.version, newcomer.epoch, newcomer.world_size) == (1, 1, learners + 1)
    # v = -1 + (1 - 3) = -3, w = 2.5, on all of them.
    train(group, *[[3.0]] * learners, [3.0])
    assert [policy.get_weight() for policy in group.train_list] == pytest.approx([2.5] * (learners + 1))
    assert push(group) == 2
    assert group.compare_weights() == []


def test_nobody_waits_for_a_train_policy_that_has_left():
    group = started(3)
    train(group, [2.0], [2.0], [2.0])
    left = group.pop(PolicyRole.TRAIN)
    # v = -1 + (1 - 3) = -3, w = 2.5: the mean of those who are left.
    assert train(group, [2.0], [4.0]) == pytest.approx(2.5)
    assert [policy.world_size for policy in group.train_list] == [2, 2]
    assert left.get_groups() == {}
    # It may act instead, and for that it is to be initialised.
    group.push(left, PolicyRole.EVAL)
    with pytest.raises(WorkerError, match="call init_eval before"):
        push(group)
    left.init_eval()
    push(group)
    assert [answer.action.item() for answer in answers(group, 2)] == pytest.approx([2.5, 2.5])


def test_a_train_policy_that_cannot_join_leaves_the_others_as_they_were():
    class Broken(Peer):
        def setup_optimizer(self, optim_cfg):
            raise ArithmeticError("no optimizer")

    group = started(2)
    train(group, [2.0], [2.0])
    with pytest.raises(WorkerError, match="no optimizer"):
        group.push(Broken(group.config, PolicyRole.TRAIN), PolicyRole.TRAIN)
    assert len(group.train_list) == 2
    assert train(group, [2.0], [4.0]) == pytest.approx(2.5)


@pytest.mark.parametrize("strategy", ["None", "Double"])
def test_a_broadcast_of_weights_reaches_those_who_are_there(strategy):
    config = PolicyConfig(weight_buffer={"buffer_strategy": strategy, "transport": "collective"})
    group = started(1, 2, config)
    group.init_weight_buffer()
    assert push(group) == 0
    left = group.pop(PolicyRole.EVAL)
    train(group, [2.0])
    assert push(group) == 1
    left.init_eval()
    group.push(left, PolicyRole.EVAL)
    train(group, [2.0])
    assert push(group) == 2
    assert group.compare_weights() == []


class Refusing(Peer):
    """Cannot be built where it is told so."""

    refuses = False

    def construct_network(self, env_meta, *args, **kwargs):
        if self.refuses:
            raise OSError("no network")
        super().construct_network(env_meta)


@pytest.mark.parametrize("change", [PolicyGroup.convert_train_to_eval, PolicyGroup.convert_eval_to_train])
def test_a_policy_that_cannot_take_a_role_leaves_the_others_as_they_were(change):
    group = Crew("local").group(Refusing, 2, 2)
    group.init_comm_group()
    group.init(TrainConfig(max_epochs=10, lr=1.0))
    group.update_dataset([torch.tensor([1.0]), torch.tensor([3.0])])
    # A step of a rate of 1 with a gradient of w - mean(x), and from then on the mean itself.
    assert group.train()["weight"] == pytest.approx(2.0)
    refusing = (group.train_list if change is PolicyGroup.convert_train_to_eval else group.eval_list)[-1]
    refusing.refuses = True
    with pytest.raises(WorkerError, match="no network"):
        change(group, 1)
    assert refusing not in [*group.train_list, *group.eval_list]
    assert [policy.get_weight() for policy in group.train_list] == pytest.approx([2.0] * len(group.train_list))
    assert {policy.version for policy in group.train_list} == {1}
    group.update_dataset([torch.tensor([2.0])] * len(group.train_list))
    group.train()
    group.sync_weights()
    assert group.compare_weights() == []
