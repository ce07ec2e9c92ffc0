"""Every way of moving weights gives every eval policy the learner's, whole, announced, and verified."""

from pathlib import Path

import pytest
import torch

from rlightning.checkpoint import load_state, save_state
from rlightning.config import PolicyConfig
from rlightning.errors import WeightSyncError, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.types import BatchedData
from rlightning.weights.version_buffer import _MAPPED
from tests.policy.policies import (
    ByTheContract,
    ByTheContractAlone,
    Dying,
    NumberedOfEveryKind,
    OwnLoading,
    batch,
)
from tests.policy.pushes import STRATEGIES, TRAIN, config_for, push

REMOTE = {"local": [False] * 4, "ray": [True] * 4, "mixed": [False, True, False, True]}
"""Whether the learner and each of three eval policies is a process of its own."""


@pytest.fixture(scope="module")
def policies():
    """A learner, and three eval policies, the last of a class, in each place; shared, since processes start slowly."""
    pool, made = WorkerPool(), {}

    def get(place, cls):
        classes = [*[NumberedOfEveryKind] * 3, cls]
        wanted = [*zip(classes, range(4), REMOTE[place], strict=True)]
        missing = [each for each in wanted if each not in made]
        made.update(zip(missing, pool.start([spec(*each) for each in missing]), strict=True))
        return [made[each] for each in wanted]

    yield get
    pool.stop()


def spec(cls, index, remote):
    role = PolicyRole.EVAL if index else PolicyRole.TRAIN
    return WorkerSpec(cls, (PolicyConfig(), role), f"{role.value}{index}", remote, 0.01, 0.0, {"weights": 1})


def maker(request, policies):
    """A function that makes groups of policies as after a start, without weights."""
    if request.param != "local":
        request.getfixturevalue("ray_cluster")

    def make(cls, strategy, actors=3, colocated=False, transport="auto"):
        learner, *others = policies(request.param, cls)
        group = PolicyGroup([learner], others[:actors], config_for(strategy, transport), seed=3, call_timeout_s=60)
        group.init(TRAIN)
        group.init_placement_info(is_colocated=colocated)
        group.init_weight_buffer()
        if transport == "collective":
            group.init_comm_group("gloo")
        return group

    return make


@pytest.fixture(params=["local", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def places(request, policies):
    return maker(request, policies)


@pytest.fixture(params=[pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])])
def remote(request, policies):
    return maker(request, policies)


@pytest.fixture(params=[pytest.param("mixed", marks=[pytest.mark.ray, pytest.mark.slow])])
def mixed(request, policies):
    return maker(request, policies)


def ask(worker, method, *args):
    return as_handle(worker).call(method, *args).result(60)


def mapped_file(policy):
    return Path(policy._weight_port._mapped._path)


def forget_memory(policy):
    policy._weight_port._mapped = None


def train(group):
    ask(group.train_list[0], NumberedOfEveryKind._train)


def seen(group):
    """What each eval policy acts with: the numbers in its tensors, and the version that it reports."""
    count = len(group.eval_list)
    responses = gather(group.rollout_batch(batch([1] * count)).items, 60)
    return [(sorted(set(response.extras["numbers"][0].tolist())), response.version) for response in responses]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensors_of_every_kind_arrive_bit_for_bit(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    assert group.compare_weights() != []  # before the first push they differ
    push(group)
    assert group.compare_weights() == []
    assert group.verify_eval_weight_consistency(rtol=0.0)
    assert group.verify_eval_weight_consistency()


def test_a_state_with_tensors_of_every_kind_is_saved_and_taken_back(places, tmp_path):
    group = places(NumberedOfEveryKind, "Double")
    train(group)
    expected = ask(group.train_list[0], NumberedOfEveryKind.get_bundle_digest)
    save_state(tmp_path / "c", {"policy": group.get_training_state()})
    train(group)
    group.load_training_state(load_state(tmp_path / "c")["policy"])
    assert ask(group.train_list[0], NumberedOfEveryKind.get_bundle_digest) == expected
    assert group.compare_weights() == []
    # What is not kept stays each policy's own: neither sent nor saved.
    hidden = [ask(policy, NumberedOfEveryKind.get_hidden) for policy in (*group.train_list, *group.eval_list)]
    assert hidden == [[3.0] * 6] + [[0.0] * 6] * 3


@pytest.mark.parametrize("strategy", [*STRATEGIES, "colocated"])
@pytest.mark.parametrize("cls", [ByTheContract, ByTheContractAlone])
def test_methods_with_just_the_parameters_of_the_contract_work(cls, strategy):
    learner, actor = cls(PolicyConfig(), PolicyRole.TRAIN), cls(PolicyConfig(), PolicyRole.EVAL)
    group = PolicyGroup([learner], [actor], config_for("None" if strategy == "colocated" else strategy), seed=3)
    group.init(TRAIN)
    group.init_placement_info(is_colocated=strategy == "colocated")
    group.init_weight_buffer()
    for version in range(3):
        assert push(group) == version
        assert group.compare_weights() == []
        (response,) = group.rollout_batch(batch([2])).items
        assert group.postprocess(batch([2]), BatchedData([0], [response])).items[0].result().version == version
        group.update_dataset([torch.zeros(1)])
        group.train()
    assert learner.net.bias.tolist() == (actor.net.bias + 1).tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nobody_acts_before_the_first_weights_and_all_act_with_each_new_version(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    with pytest.raises(WorkerError, match="no weights have come yet"):
        seen(group)
    for version in range(4):
        assert push(group) == version
        assert group.version == version
        assert seen(group) == [([version], version)] * 3
        train(group)
    # What was trained since is not in force before it is pushed.
    assert seen(group) == [([3], 3)] * 3


@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_what_was_sent_is_in_force_only_after_it_was_announced(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    push(group)
    train(group)
    assert group.send_weights() == 1
    assert seen(group) == [([0], 0)] * 3
    assert group.version == 0
    group.notify_update_weights()
    group.wait_for_eval_weight_update()
    assert seen(group) == [([1], 1)] * 3


@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_weights_that_were_sent_and_never_announced_do_not_come_into_force_by_the_next_sending(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    push(group)
    for version in (1, 2, 3):
        train(group)
        assert group.send_weights() == version
        assert seen(group) == [([0], 0)] * 3
    group.notify_update_weights()
    group.wait_for_eval_weight_update()
    assert seen(group) == [([3], 3)] * 3


@pytest.mark.parametrize("strategy", ["Double", "Sharded"])
def test_a_push_that_fails_at_one_receiver_changes_nothing_at_the_others_and_neither_does_the_next_try(
    places, strategy
):
    group = places(OwnLoading, strategy)
    push(group)
    train(group)
    ask(group.eval_list[2], OwnLoading.fail_next_receiving)
    with pytest.raises(WorkerError, match="nothing can be received"):
        group.sync_weights()
    assert seen(group) == [([0], 0)] * 3
    train(group)
    assert group.send_weights() == 2
    assert seen(group) == [([0], 0)] * 3
    group.notify_update_weights()
    group.wait_for_eval_weight_update()
    assert seen(group) == [([2], 2)] * 3


@pytest.mark.parametrize("strategy", ["Double", "Sharded"])
def test_a_push_by_memory_of_the_node_that_fails_at_one_receiver_changes_nothing_at_the_others(remote, strategy):
    group = remote(NumberedOfEveryKind, strategy)
    push(group)
    train(group)
    as_handle(group.eval_list[2]).run(forget_memory).result(60)
    with pytest.raises(WorkerError, match=r"eval\[2\]\.recv_weights_ipc .*: there is no memory of the node to use"):
        group.sync_weights()
    assert seen(group) == [([0], 0)] * 3
    train(group)
    push(group)
    assert seen(group) == [([2], 2)] * 3


@pytest.mark.parametrize("strategy", ["None", "Shared", "Sharded"])
def test_the_object_store_brings_the_same_as_the_memory_of_the_node(remote, strategy):
    for transport in ("object_store", "auto"):
        group = remote(NumberedOfEveryKind, strategy, transport=transport)
        for version in range(2):
            assert push(group) == version
            assert seen(group) == [([version], version)] * 3
            train(group)
        by_memory = [delivery.by_memory for delivery in group._weights._choose_way().deliveries]
        assert by_memory == [transport == "auto" and strategy != "Shared"]  # there the learner writes itself
    mapped = as_handle(group.train_list[0]).run(mapped_file).result(60)
    assert not mapped.exists()  # nothing of it is left behind, however the processes end


def test_memory_of_the_node_is_for_processes_whose_authors_send_and_receive_as_policies_do(remote, mixed):
    def ways(make, cls):
        return [delivery.by_memory for delivery in make(cls, "Double")._weights._choose_way().deliveries]

    assert ways(remote, NumberedOfEveryKind) == [True]
    assert ways(remote, OwnLoading) == [False]
    assert ways(mixed, NumberedOfEveryKind) == [False, False]


@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_a_newcomer_that_is_not_ready_fails_the_push_and_the_next_one_makes_the_buffers(strategy):
    config = config_for(strategy)
    learner, first, late = (NumberedOfEveryKind(config, PolicyRole.EVAL if i else PolicyRole.TRAIN) for i in range(3))
    group = PolicyGroup([learner], [first], config)
    group.init(TRAIN)
    group.init_weight_buffer()
    push(group)
    group.push(late, PolicyRole.EVAL)
    with pytest.raises(WorkerError, match="call init_eval before"):
        push(group)
    late.init_eval()
    train(group)
    push(group)
    assert [(policy.version, policy.tensors.t7.unique().item()) for policy in (first, late)] == [(1, 1), (1, 1)]


def test_a_buffer_of_other_processes_is_not_mapped_by_the_one_that_controls_them(places, request):
    before = set(_MAPPED)
    group = places(NumberedOfEveryKind, "Shared")
    push(group)
    assert len(set(_MAPPED) - before) == ("local" in request.node.name)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_push_that_fails_is_raised_not_announced_and_leaves_the_old_weights_in_force(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    push(group)
    train(group)
    ask(group.train_list[0], NumberedOfEveryKind.fail_next_export)
    with pytest.raises(WorkerError, match="Cannot copy out of meta tensor"):
        group.sync_weights()
    group.wait_for_eval_weight_update()
    assert (seen(group), group.version) == ([([0], 0)] * 3, 0)
    train(group)
    assert push(group) == 2
    assert seen(group) == [([2], 2)] * 3


@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_an_update_that_fails_is_raised_by_the_next_wait_and_the_next_request_and_mended_by_the_next_push(
    places, strategy
):
    group = places(OwnLoading, strategy)
    push(group)
    train(group)
    ask(group.eval_list[2], OwnLoading.fail_next_loading)
    group.sync_weights()
    with pytest.raises(WorkerError, match="this cannot be loaded") as caught:
        group.wait_for_eval_weight_update()
    assert isinstance(caught.value.__cause__, WeightSyncError)
    with pytest.raises(WorkerError, match="the last weight update failed"):
        seen(group)
    train(group)
    push(group)
    assert seen(group) == [([2], 2)] * 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_some_policies_here_and_others_elsewhere_are_one_group(mixed, strategy):
    group = mixed(NumberedOfEveryKind, strategy)
    assert len(group.placement_info) == 2
    for version in range(3):
        assert push(group) == version
        assert seen(group) == [([version], version)] * 3
        train(group)


@pytest.mark.parametrize("strategy", ["None", "Double", "Shared"])
def test_a_broadcast_brings_the_same(mixed, strategy):
    group = mixed(NumberedOfEveryKind, strategy, transport="collective")
    for version in range(3):
        assert push(group) == version
        assert seen(group) == [([version], version)] * 3
        train(group)
    ask(group.train_list[0], NumberedOfEveryKind.fail_next_export)
    with pytest.raises(WorkerError, match="Cannot copy out of meta tensor"):
        group.sync_weights()
    assert seen(group) == [([2], 2)] * 3
    assert push(group) == 3
    assert seen(group) == [([3], 3)] * 3


def test_several_local_policies_broadcast_in_one_process():
    # New ones: those of the fixture may still be in groups with policies elsewhere, which takes long to leave.
    roles = PolicyRole.TRAIN, *[PolicyRole.EVAL] * 3
    learner, *others = (NumberedOfEveryKind(PolicyConfig(), role) for role in roles)
    group = PolicyGroup([learner], others, config_for("Double", "collective"), call_timeout_s=60)
    group.init(TRAIN)
    group.init_weight_buffer()
    with pytest.raises(WorkerError, match=r"call PolicyGroup\.init_comm_group first"):
        group.sync_weights()
    group.init_comm_group("gloo")
    for version in range(3):
        assert push(group) == version
        assert seen(group) == [([version], version)] * 3
        train(group)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_bit_of_one_parameter_of_one_policy_is_found_and_named(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    push(group)
    ask(group.eval_list[2], NumberedOfEveryKind.flip_one_bit)
    # With shared memory all eval policies act with that bit, and all are named that live beside the third one.
    found = group.compare_weights()
    assert {mismatch.name for mismatch in found} == {"tensors.t7"}
    assert 2 in {mismatch.policy for mismatch in found}
    assert not group.verify_eval_weight_consistency(rtol=0.0)
    # The norm changed by far less than a thousandth: that is no proof.
    assert group.verify_eval_weight_consistency()
    push(group)  # the same version once more: the bit is mended
    assert group.compare_weights() == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_policy_that_joins_gets_weights_with_the_next_push(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    push(group)
    late = group.pop(PolicyRole.EVAL)
    train(group)
    push(group)
    assert seen(group) == [([1], 1)] * 2
    group.push(late, PolicyRole.EVAL)
    push(group)
    assert seen(group) == [([1], 1)] * 3
    train(group)
    push(group)
    assert seen(group) == [([2], 2)] * 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_going_back_to_an_older_state_brings_the_older_weights(places, strategy):
    group = places(NumberedOfEveryKind, strategy)
    push(group)
    state = group.get_training_state()
    train(group)
    train(group)
    push(group)
    group.load_training_state(state)
    assert (seen(group), group.version) == ([([0], 0)] * 3, 0)


def test_colocated_policies_hand_over_in_pairs(places):
    group = places(NumberedOfEveryKind, "None", actors=1, colocated=True)
    for version in range(3):
        assert push(group) == version
        assert seen(group) == [([version], version)]
        train(group)
    assert group.compare_weights()[0].name == "version"


@pytest.mark.parametrize("first", ["Double", "Shared"])
@pytest.mark.parametrize("then", ["None", "colocated"])
def test_weights_go_straight_in_where_another_way_had_buffers(places, first, then):
    group = places(NumberedOfEveryKind, first, actors=1)
    push(group)
    train(group)
    if then == "colocated":
        group.init_placement_info(is_colocated=True)
    else:
        group.config = config_for(then)
        group.init_weight_buffer()
    push(group)
    assert seen(group) == [([1], 1)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_that_share_policies_push_by_turns_and_each_reaches_all_of_its_own(places, strategy):
    first = places(NumberedOfEveryKind, strategy)
    learner, (_, *others) = first.train_list[0], first.eval_list
    groups = [first, PolicyGroup([learner], others, config_for(strategy), call_timeout_s=60)]
    groups[1].init_weight_buffer()
    for version in range(4):
        group = groups[version % 2]
        assert push(group) == version
        assert seen(group) == [([version], version)] * len(group.eval_list)
        train(first)


def test_what_an_author_hands_over_to_the_policy_beside_is_passed_on():
    config, given = config_for("None"), []

    class Giving(NumberedOfEveryKind):
        def send_weights_ipc(self):
            given.append(super().send_weights_ipc())
            return given[-1]

        def recv_weights_ipc(self, payload):
            assert payload is given[-1]
            return super().recv_weights_ipc(payload)

    group = PolicyGroup([Giving(config, PolicyRole.TRAIN)], [Giving(config, PolicyRole.EVAL)], config)
    group.init(TRAIN)
    group.init_placement_info(is_colocated=True)
    for version in range(2):
        assert push(group) == version
        assert seen(group) == [([version], version)]
        train(group)


@pytest.mark.ray
def test_no_file_is_left_behind_where_the_policy_that_made_it_ends_before_all_have_mapped_it(ray_cluster, policies):
    pool = WorkerPool()
    try:
        (learner,), actor = pool.start([spec(Dying, 0, True)]), policies("ray", NumberedOfEveryKind)[1]
        group = PolicyGroup([learner], [actor], config_for("None"), call_timeout_s=60)
        group.init(TRAIN)
        with pytest.raises(WorkerError, match=r"train\[0\].map "):
            group.sync_weights()
        assert not as_handle(actor).run(mapped_file).result(60).exists()
    finally:
        pool.stop()


def test_colocated_groups_with_more_eval_than_train_policies_are_refused():
    config = config_for("None")
    group = PolicyGroup(
        [NumberedOfEveryKind(config, PolicyRole.TRAIN)],
        [NumberedOfEveryKind(config, PolicyRole.EVAL) for _ in "ab"],
        config,
    )
    group.init(TRAIN)
    group.init_placement_info(is_colocated=True)
    with pytest.raises(ValueError, match="1 train policies for 2 eval policies"):
        group.sync_weights()
