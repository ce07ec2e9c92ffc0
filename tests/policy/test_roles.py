"""Policies change their roles at run time, and training goes on from where it was."""

import pytest
import torch

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.errors import ProtocolError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from tests.policy.crew import HERE_AND_THERE, crews
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
    second.call(BasePolicy.change_role, PolicyRole.TRAIN).result(60)


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
    policy.change_role(PolicyRole.EVAL)
    assert not policy.is_initialized()
    assert not hasattr(policy, "optimizer")
    with pytest.raises(ProtocolError, match="init_train is for policies of role 'train'"):
        policy.init_train(TrainConfig())
    policy.init_eval()
    assert isinstance(policy, BasePolicy)
