"""Policies with ranks: their groups, their equal start, their averaged gradients, wherever they live."""

import pytest
import torch
from torch import nn

from rlightning.config import PolicyConfig, TrainConfig
from rlightning.distributed import ParallelMode
from rlightning.errors import (
    CallTimeout,
    ConfigError,
    ProtocolError,
    WeightSyncError,
    WorkerDied,
    WorkerError,
)
from rlightning.policy.base_policy import BasePolicy, PolicyRole, infer_train_dp_world_size
from rlightning.policy.networks import change_role
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle
from tests.policy.crew import EVERYWHERE, RAY, Crew, crews, leave_groups
from tests.policy.policies import Peer, Wider, Wrapping

CONFIG = PolicyConfig()
TRAIN = TrainConfig(max_epochs=10, lr=1.0)
crew = pytest.fixture(scope="module", params=EVERYWHERE)(crews)


@pytest.fixture
def elsewhere(held_policies):
    """Policies that are all remote."""
    return Crew(RAY, held_policies)


def ask_all(policies, method, *args):
    """Ask one after the other, for what needs no others."""
    return [as_handle(policy).call(method, *args).result(60) for policy in policies]


def train(group, *values, **options):
    group.update_dataset([torch.tensor(value) for value in values])
    return group.train(**options)


# Groups


def test_every_policy_has_a_rank_and_is_in_the_groups_of_its_node_and_its_role(crew):
    group = crew.group(Peer)
    (first, second), actors = group._members.learners, group._members.actors
    group._formation.form("nccl", False, [(first, actors), (second, actors[1:])])
    policies = [*group.train_list, *group.eval_list]
    assert sorted(ask_all(policies, Peer.get_rank)) == [0, 1, 2, 3]
    # Learners are given first. In a mixed group the first one is alone on the controller's node.
    assert ask_all(policies, Peer.get_rank) == [0, 1, 2, 3]
    found = ask_all(policies, Peer.get_groups)
    generation = found[0]["global"][0][2]
    nodes = [(0,), (1, 2, 3)] if crew.place == "mixed" else [(0, 1, 2, 3)]
    for rank, groups in enumerate(found):
        node = next(ranks for ranks in nodes if rank in ranks)
        assert groups["global"] == [((0, 1, 2, 3), rank, generation)]
        assert groups["intra_node"] == [(node, node.index(rank), generation)]
    assert [groups.get("train_data_parallel") for groups in found] == [
        [((0, 1), 0, generation)],
        [((0, 1), 1, generation)],
        None,
        None,
    ]
    # Rank 0 sends to 2 and 3, rank 1 to 3: the receiver 3 is in two groups.
    assert [[ranks for ranks, _, _ in groups["weight_transfer"]] for groups in found] == [
        [(0, 2, 3)],
        [(1, 3)],
        [(0, 2, 3)],
        [(0, 2, 3), (1, 3)],
    ]
    for mode, sums in {ParallelMode.GLOBAL: [1111.0] * 4, ParallelMode.TRAIN_DATA_PARALLEL: [11.0, 11.0]}.items():
        assert (
            group._members.collective_call([as_handle(p) for p in policies[: len(sums)]], Peer.sum_of_ranks, mode)
            == sums
        )
    group._members.collective_call([as_handle(policy) for policy in policies], BasePolicy.dist_barrier)


def test_groups_are_formed_again_for_other_members(crew):
    group = crew.group(Peer)
    generations = []
    for actors in (2, 1, 0):
        group.init_comm_group()
        everybody = [*group.train_list, *group.eval_list]
        found = ask_all(everybody, Peer.get_groups)
        generations.append({groups["global"][0][2] for groups in found})
        assert len(found[0]["global"][0][0]) == 2 + actors
        # 1 + 10 of the ranks 0 and 1, and so on.
        sums = group._members.collective_call(
            [as_handle(policy) for policy in everybody], Peer.sum_of_ranks, ParallelMode.GLOBAL
        )
        assert sums == [float("1" * (2 + actors))] * (2 + actors)
        if actors:
            group.pop(PolicyRole.EVAL)
    assert generations == [{1}, {2}, {3}]


def test_colocated_eval_policies_have_no_rank_of_their_own(crew):
    group = crew.group(Peer)
    leave_groups(group.eval_list)
    group.init_comm_group(is_colocated=True)
    assert ask_all(group.eval_list, Peer.get_groups) == [{}, {}]
    assert set(ask_all(group.train_list, Peer.get_groups)[0]) == {"global", "intra_node", "train_data_parallel"}


def test_nobody_forms_no_group():
    group = PolicyGroup([], [], CONFIG)
    group.init_comm_group()
    group.shutdown()


def test_the_number_of_learners_is_known(crew):
    group = crew.group(Peer)
    group.init_comm_group()
    group.init(TRAIN)
    ours, inferred, default = ask_all(group.train_list, Peer.get_sizes)[1]
    # The second learner. Torch's default group is there where each learner is a process of its own.
    assert (ours, inferred) == (2, 2)
    assert default == (2 if crew.place == "ray" else None)


def test_the_number_of_learners_is_one_again_after_shutdown():
    crew = Crew("local")
    group = crew.group(Peer)
    group.init_comm_group()
    assert infer_train_dp_world_size() == 2
    group.shutdown()
    assert infer_train_dp_world_size() == 1


def test_without_groups_a_policy_is_alone():
    policy = Peer(CONFIG, PolicyRole.TRAIN)
    policy.init_train(TRAIN)
    assert (policy.get_rank(), policy.peers.size, policy.get_groups()) == (0, 1, {})
    policy.dist_barrier()
    policy._data_parallel.check_ranks(policy)
    policy.init_single_comm_group((1, 2), ParallelMode.INTRA_NODE)
    with pytest.raises(ProtocolError, match="call init_distributed_env before init_single_comm_group"):
        policy.init_single_comm_group((0, 1), ParallelMode.INTRA_NODE)


# Equal start


@pytest.mark.parametrize("seed", [7, None])
def test_all_learners_start_from_the_weights_and_buffers_of_the_first(crew, seed):
    group = crew.group(Peer, seed=seed)
    group.init_comm_group()
    group.init_train(TRAIN)
    first, second = ask_all(group.train_list, BasePolicy.get_bundle_digest)
    assert first == second
    group.reset_training_state(TRAIN, seed=9)
    again = ask_all(group.train_list, BasePolicy.get_bundle_digest)
    assert again[0] == again[1] != first
    assert again[0][0] == 1


def test_learners_draw_on_their_own_and_alike_where_they_must(crew):
    group = crew.group(Peer)
    group.init_comm_group()
    for again in (False, True):
        if again:
            group.reset_training_state(TRAIN, seed=8)
        else:
            group.init_train(TRAIN)
        (first, shared), (second, also) = ask_all(group.train_list, Peer.draw)
        assert first != second
        # One learner alone draws what it would draw from its own generator.
        assert shared == also == first


def test_learners_that_build_other_networks_are_refused():
    group = Crew("local").group(Wider, actors=0)
    group.init_comm_group()
    with pytest.raises(WorkerError, match=r"train policies \[1\] have other names, shapes or dtypes") as caught:
        group.init_train(TRAIN)
    assert isinstance(caught.value.__cause__, WeightSyncError)


# Training


def test_a_plain_backward_averages_over_the_learners(crew):
    group = crew.group(Peer, actors=0)
    group.init_comm_group()
    group.init_train(TRAIN)
    # The gradient of the mean of (w - x)² / 2 is w - mean(x); a step of 1 arrives at the mean of the means:
    # (2 + 8) / 2.
    assert train(group, [1.0, 3.0], [8.0])["weight"] == pytest.approx(5.0)
    # What each reports is its own; their mean is there too.
    assert group.mean_metrics() == pytest.approx({"loss": 5.0, "weight": 5.0})
    assert len(set(map(str, ask_all(group.train_list, BasePolicy.get_bundle_digest)))) == 1


def test_ranks_that_differ_are_found_by_name(crew):
    group = crew.group(Peer, actors=0)
    group.init_comm_group()
    group.init_train(TrainConfig(check_ranks_interval=2))
    ask_all(group.train_list[1:], Peer.spoil, "net.weight")
    train(group, [1.0], [2.0])
    with pytest.raises(WorkerError, match=r"after epoch 2 train policy 1 differs .* 1 of 2 tensors: net\.weight"):
        train(group, [1.0], [2.0])


def test_learners_agree_on_the_statistics_of_batches_that_each_saw_its_own_of(crew):
    group = crew.group(Peer)
    group.init_comm_group()
    group.init(TRAIN)
    ask_all(group.train_list[1:], Peer.spoil, "self.seen")
    train(group, [1.0], [2.0])
    first, second = ask_all(group.train_list, BasePolicy.get_bundle_digest)
    assert first == second
    # So it does not matter which of them sends to whom.
    group.sync_weights()
    assert group.compare_weights() == []


class Unregistered(Peer):
    """Holds its network in a dict, and names it in the model list."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.held = {"net": nn.Linear(1, 1, bias=False)}
        self.model_list = [("net", self.net)]

    @property
    def net(self):
        return self.held["net"]


def test_a_model_that_is_no_attribute_starts_equal_is_averaged_and_saved(tmp_path):
    group = Crew("local").group(Unregistered, actors=1)
    group.init_comm_group()
    group.init(TRAIN)
    first, second = group.train_list
    assert first.get_weight() == second.get_weight()
    assert first.net.training
    assert not group.eval_list[0].net.training
    # As in the test of a plain backward.
    assert train(group, [1.0, 3.0], [8.0])["weight"] == pytest.approx(5.0)
    assert second.get_weight() == pytest.approx(5.0)
    group.save_checkpoint(tmp_path / "c")
    train(group, [1.0], [1.0])
    first.load_checkpoint(tmp_path / "c")
    assert first.get_weight() == pytest.approx(5.0)


class Tempered(Peer):
    """Has a temperature that no module holds, and another network from its second training step on."""

    def setup_optimizer(self, optim_cfg):
        super().setup_optimizer(optim_cfg)
        self.temperature = torch.zeros((), requires_grad=True)
        self.optimizers = [torch.optim.SGD([self.temperature], 1.0)]

    def train(self, *args, **kwargs):
        if self.epoch == 1:
            self.net = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(self.net.weight)
            self.optimizer = torch.optim.SGD(self.net.parameters(), 1.0)
        (self.temperature * self.dataset.mean()).backward()
        self.optimizers[0].step()
        self.optimizers[0].zero_grad()
        return super().train(*args, **kwargs)


def test_whatever_the_optimizers_learn_is_averaged_also_what_came_later():
    group = Crew("local").group(Tempered, actors=0)
    group.init_comm_group()
    group.init_train(TRAIN)
    for _ in range(2):
        train(group, [1.0], [2.0])
    # Its gradient is the mean of the data, 1.5: two steps of a rate of 1 from 0.
    assert [policy.temperature.item() for policy in group.train_list] == [-3.0, -3.0]
    # One step from 0 with a gradient of w - 1.5.
    assert [policy.get_weight() for policy in group.train_list] == [1.5, 1.5]


class Optimizerless(Peer):
    """Fails at the end of its start on the second train policy."""

    def setup_optimizer(self, optim_cfg):
        if self.peers.rank == 1:
            raise OSError("no optimizer")
        super().setup_optimizer(optim_cfg)


class Absent(Peer):
    """Does not meet the others where it is told so."""

    is_absent = False

    def init_distributed_env(self, *args, **kwargs):
        if self.is_absent:
            raise OSError("nobody to meet")
        super().init_distributed_env(*args, **kwargs)


def test_nobody_waits_for_a_learner_whose_start_failed():
    group = Crew("local").group(Optimizerless, actors=0)
    group.init_comm_group()
    with pytest.raises(WorkerError, match="no optimizer"):
        group.init_train(TRAIN)
    # At once, and not after the time that calls may take; the first one does not learn alone either.
    assert not any(policy.is_initialized() for policy in group.train_list)


def test_groups_that_could_not_be_formed_are_formed_before_anybody_learns():
    group = Crew("local").group(Absent, actors=0, timeout_s=4.0)
    group.init_comm_group()
    group.init_train(TRAIN)
    group.train_list[1].is_absent = True
    with pytest.raises(WorkerError, match="nobody to meet"):
        group.init_comm_group()
    group.train_list[1].is_absent = False
    assert train(group, [1.0], [3.0])["weight"] == pytest.approx(2.0)


@pytest.mark.parametrize("broken", [(1,), (0,), (0, 1)])
def test_a_learner_that_fails_is_named_and_nobody_waits_for_it(crew, broken):
    group = crew.group(Peer, actors=0)
    group.init_comm_group()
    group.init_train(TRAIN)
    with pytest.raises(WorkerError, match=f"train policy {broken[0]} cannot"):
        train(group, [1.0], [2.0], fail_on=broken)
    # Having left the others it does not go on alone, and says how to go on.
    with pytest.raises(WorkerError, match=r"call PolicyGroup\.init_comm_group to form the groups again"):
        train(group, [1.0], [3.0])
    group.init_comm_group()
    assert train(group, [1.0], [3.0])["weight"] == pytest.approx(2.0)


def test_a_learner_that_does_not_come_is_a_timeout_that_names_it():
    crew = Crew("local")
    group = crew.group(Peer, actors=0, timeout_s=2.0)
    group.init_comm_group()
    group.init_train(TRAIN)
    first = as_handle(group.train_list[0])
    first.target.dataset = torch.ones(1)
    with pytest.raises(
        WorkerError, match=r"rank 0 of 2 in the group train_data_parallel\[0,1\].*phase all_reduce"
    ) as e:
        first.call(BasePolicy._train).result()
    assert isinstance(e.value.__cause__, CallTimeout)


@pytest.mark.ray
def test_a_learner_that_dies_is_named_and_nobody_waits_for_it(elsewhere, held_policies):
    group = elsewhere.group(Peer, actors=0)
    held_policies.forget(group.train_list[1])
    group.init_comm_group()
    group.init_train(TRAIN)
    with pytest.raises(WorkerDied) as caught:
        train(group, [1.0], [2.0], die_on=1)
    assert caught.value.worker == "train[1]"
    group.pop(PolicyRole.TRAIN)
    group.init_comm_group()
    # The one that is left learns on alone: its gradient is w - 4.
    assert train(group, [4.0])["weight"] == pytest.approx(4.0)


@pytest.mark.ray
def test_an_authors_own_wrapper_takes_precedence(elsewhere):
    group = elsewhere.group(Wrapping, actors=0)
    group.init_comm_group()
    group.init_train(TRAIN)
    # (2 + 8) / 2, as without the wrapper; the eval side knows the weight by its plain name.
    assert train(group, [1.0, 3.0], [8.0])["weight"] == pytest.approx(5.0)
    assert list(ask_all(group.train_list, BasePolicy.get_param_fingerprint)[1]) == ["net.weight", "self.seen"]


@pytest.mark.ray
def test_an_authors_own_wrapper_is_put_on_once_for_the_learners_that_there_are(elsewhere):
    group = elsewhere.group(Wrapping, actors=1)
    group.init_comm_group()
    group.init(TRAIN)
    second = as_handle(group.train_list[1])
    assert train(group, [1.0, 3.0], [8.0])["weight"] == pytest.approx(5.0)
    group.sync_weights()
    group.convert_eval_to_train(1)
    assert ask_all(group.train_list, Wrapping.count_wrappers) == [1, 1, 1]
    # A step of 1 arrives at the mean of the means: (2 + 2 + 5) / 3.
    assert train(group, [2.0], [2.0], [5.0])["weight"] == pytest.approx(3.0)
    group.convert_train_to_eval(2)
    # Who learns alone needs no wrapper, and who acts has none.
    assert ask_all([*group.train_list, *group.eval_list], Wrapping.count_wrappers) == [0, 0, 0]
    assert train(group, [4.0])["weight"] == pytest.approx(4.0)
    # As other tests expect to find it.
    second.run(change_role, PolicyRole.TRAIN).result(60)


@pytest.mark.ray
def test_what_an_author_wrapped_for_other_groups_does_not_train_before_it_is_built_anew(elsewhere):
    group = elsewhere.group(Wrapping, actors=0)
    group.init_comm_group()
    group.init_train(TRAIN)
    train(group, [1.0, 3.0], [8.0])
    group.init_comm_group()
    with pytest.raises(WorkerError, match=r"wraps networks for one group: call PolicyGroup\.get_training_state"):
        train(group, [1.0], [3.0])
    state = group.get_training_state()
    group.init_train(TRAIN)
    group.load_training_state(state)
    assert ask_all(group.train_list, Wrapping.count_wrappers) == [1, 1]
    assert train(group, [1.0], [3.0])["weight"] == pytest.approx(2.0)


def test_what_an_author_would_have_wrapped_for_groups_that_came_later_does_not_train():
    group = Crew("local").group(Wrapping, actors=0)
    group.init_train(TRAIN)
    group.init_comm_group()
    with pytest.raises(WorkerError, match="the groups were formed after init_train, and Wrapping") as caught:
        train(group, [1.0], [3.0])
    assert isinstance(caught.value.__cause__, ProtocolError)


def test_an_authors_own_wrapper_wants_processes():
    group = Crew("local").group(Wrapping, actors=0)
    group.init_comm_group()
    with pytest.raises(WorkerError, match=r"set cluster\.remote_train=true") as caught:
        group.init_train(TRAIN)
    assert isinstance(caught.value.__cause__, ConfigError)


# State


def test_a_group_of_learners_goes_on_from_its_state(crew):
    group = crew.group(Peer)
    group.init_comm_group()
    group.init(TRAIN)
    group.sync_weights()
    train(group, [1.0], [3.0])
    state = group.get_training_state()

    def go_on():
        train(group, [2.0], [5.0])
        return [ask_all(group.train_list, method) for method in (BasePolicy.get_bundle_digest, Peer.draw)]

    expected = go_on()
    group.init(TRAIN)
    group.load_training_state(state)
    assert go_on() == expected
    group.pop(PolicyRole.TRAIN)
    with pytest.raises(ProtocolError, match=r"2 train policies, this one has 1: set cluster\.train_worker_num=2"):
        group.load_training_state(state)
