"""Weights travel in buckets: no policy acts with some of them, or holds more of them than it must."""

import threading
import tracemalloc

import pytest
import torch
from torch import nn

from rlightning.config import PolicyConfig, WeightBufferConfig
from rlightning.errors import WeightSyncError, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.policy.policies import Bare, Numbered, batch
from tests.policy.pushes import STRATEGIES, TRAIN, push

# The 200 tensors of ``Numbered`` have 12 to 60 bytes and a cache line each: 15 of them are a bucket, and all are 14.
BUCKETS = 14


class OwnWay(Numbered):
    """Loads weights in its own way."""

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)


def config_for(strategy, transport="auto", bucket_mb=0.00096):
    return PolicyConfig(
        weight_buffer=WeightBufferConfig(buffer_strategy=strategy, transport=transport, bucket_mb=bucket_mb)
    )


def started(policies, config, **placement):
    group = PolicyGroup(policies[:1], policies[1:], config, call_timeout_s=60)
    group.init(TRAIN)
    group.init_placement_info(**placement)
    group.init_weight_buffer()
    return group


def local_group(strategy, cls=Numbered, actors=2):
    config = config_for(strategy)
    roles = [PolicyRole.TRAIN, *[PolicyRole.EVAL] * actors]
    group = started([cls(config, role) for role in roles], config)
    push(group)
    return group


def seen(group):
    responses = gather(group.rollout_batch(batch([1] * len(group.eval_list))).items, 60)
    return [(sorted(set(response.extras["numbers"][0].tolist())), response.version) for response in responses]


def pushes_bring_all(group):
    for version in range(3):
        assert push(group) == version
        assert seen(group) == [([version], version)] * len(group.eval_list)
        assert group.compare_weights() == []
        as_handle(group.train_list[0]).call(Numbered._train).result(60)


@pytest.mark.parametrize("cls", [Numbered, OwnWay])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_buckets_of_a_version_come_into_force_together(strategy, cls):
    config = config_for(strategy)
    roles = [PolicyRole.TRAIN, *[PolicyRole.EVAL] * 3]
    group = started([cls(config, role) for role in roles], config)
    assert len(group.train_list[0]._weight_port.runs()) >= BUCKETS
    pushes_bring_all(group)


@pytest.mark.ray
@pytest.mark.slow
def test_buckets_come_by_every_way_between_processes(ray_cluster):
    pool, roles = WorkerPool(), [PolicyRole.TRAIN, *[PolicyRole.EVAL] * 2]
    try:
        workers = pool.start(
            [
                WorkerSpec(Numbered, (config_for("None"), role), f"{role}{i}", True, 0.01, 0.0, {"weights": 1})
                for i, role in enumerate(roles)
            ]
        )
        for transport in ("auto", "object_store"):
            for strategy in STRATEGIES:
                pushes_bring_all(started(workers, config_for(strategy, transport)))
        pushes_bring_all(started(workers[:2], config_for("None"), is_colocated=True))
        for strategy in STRATEGIES[:3]:
            group = started(workers, config_for(strategy, "collective"))
            group.init_comm_group("gloo")
            pushes_bring_all(group)
    finally:
        pool.stop()


def broken_off(group):
    """Fail at a bucket in the middle of a push."""
    port = group.train_list[0]._weight_port
    port.read, read = lambda index: read(index) if index < 5 else torch.empty(1, device="meta").numpy(), port.read
    group.train()
    with pytest.raises(WorkerError, match="meta"):
        group.sync_weights()
    port.read = read


def test_requests_are_refused_after_a_transfer_that_broke_off_until_a_whole_version_has_come():
    group = local_group("None")
    broken_off(group)
    for _ in range(2):
        with pytest.raises(WorkerError, match="the transfer of version 1 broke off; push the weights once more"):
            seen(group)
    push(group)
    assert seen(group) == [([1], 1)] * 2


@pytest.mark.parametrize(("strategy", "cls"), [("Double", Numbered), ("Sharded", Numbered), ("Double", OwnWay)])
def test_a_transfer_that_breaks_off_where_buckets_wait_for_each_other_changes_nothing(strategy, cls):
    group = local_group(strategy, cls)
    broken_off(group)
    assert seen(group) == [([0], 0)] * 2
    push(group)
    assert seen(group) == [([1], 1)] * 2


def test_requests_wait_from_the_first_bucket_of_a_version_to_the_last():
    group = local_group("None", actors=1)
    learner, actor = group.train_list[0], group.eval_list[0]
    learner._train()
    first, *others = learner._weight_port.buckets()
    actor.recv_weights(first)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(actor._rollout(batch([1]).items[0])))
    asking.start()
    asking.join(0.2)
    assert asking.is_alive()
    for bucket in others:
        actor.recv_weights(bucket)
    asking.join(60)
    assert (answers[0].version, answers[0].extras["numbers"].tolist()) == (1, [[1.0, 1.0]])


def test_buckets_of_two_versions_are_no_version():
    group = local_group("None", actors=1)
    learner, actor = group.train_list[0], group.eval_list[0]
    learner._train()
    actor.recv_weights(learner.send_weights(["actor"], None, 0))
    learner._train()
    with pytest.raises(WeightSyncError, match="version 2 came in the middle of version 1"):
        actor.recv_weights(learner.send_weights(["actor"], None, 1))
    with pytest.raises(WeightSyncError, match="the last weight update failed: version 2 came"):
        actor._rollout(batch([1]).items[0])
    with pytest.raises(WeightSyncError, match="the first bucket of version 2 did not come"):
        actor.recv_weights(learner.send_weights(["actor"], None, 1))
    push(group)
    assert seen(group) == [([2], 2)]


class Large(Bare):
    """Eight tensors of a megabyte."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.ParameterList([nn.Parameter(torch.zeros(250_000)) for _ in range(8)])


class LargeOwnLoading(Large):
    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)


@pytest.mark.parametrize(("cls", "megabytes"), [(Large, 1), (LargeOwnLoading, 8)])
def test_with_none_a_push_takes_one_bucket_of_memory_and_an_own_way_of_loading_a_whole_copy(cls, megabytes):
    config = config_for("None", bucket_mb=1.0)
    group = started([cls(config, PolicyRole.TRAIN), cls(config, PolicyRole.EVAL)], config)
    push(group)
    tracemalloc.start()  # it counts what numpy allocates, as buckets are
    try:
        push(group)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # One bucket may be made while the one before is let go.
    assert megabytes * 1_000_000 <= peak <= min(2 * megabytes, megabytes + 1) * 1_100_000
