"""An eval policy with a buffer: announcements, threads, and whose memory it acts with."""

import gc
import threading
import time

import pytest
import torch
from torch import nn

from rlightning.errors import ProtocolError, WeightSyncError, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.types import PolicyResponse
from tests.policy.policies import Bare, EveryKind, Numbered, OwnLoading, batch
from tests.policy.pushes import STRATEGIES, TRAIN, config_for, push
from tests.weights.hasty import Hasty


def local_pair(strategy, cls=Numbered):
    config = config_for(strategy)
    learner, actor = cls(config, PolicyRole.TRAIN), cls(config, PolicyRole.EVAL)
    group = PolicyGroup([learner], [actor], config)
    group.init(TRAIN)
    group.init_weight_buffer()
    push(group)
    return learner, actor, group


def test_two_announcements_before_one_update_lose_nothing():
    learner, actor, _ = local_pair("Double")
    with actor._gate.request():  # the updater waits while this request runs
        for _ in range(2):
            actor.notify_update_weights()
        learner._train()
        actor.recv_weights(learner.send_weights(["actor"]))
        actor.notify_update_weights()
        assert not actor.wait_for_weight_update_done(timeout=0.05)
        assert actor.version == 0
    assert actor.wait_for_weight_update_done(timeout=30)
    assert actor.version == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_reader_ever_sees_two_versions_in_one_snapshot(strategy):
    # 200 tensors filled with the number of their version; versions 1 to 200 at full speed while 4 readers act; version
    # 50 fails half way.
    config = config_for(strategy)
    learner = Numbered(config, PolicyRole.TRAIN)
    actors = [Numbered(config, PolicyRole.EVAL) for _ in range(4)]
    group = PolicyGroup([learner], actors, config)
    group.init(TRAIN)
    group.init_weight_buffer()
    push(group)
    over, snapshots, failures = threading.Event(), [[] for _ in actors], []
    asked = batch([1]).items[0]

    def read(actor, into):
        try:
            while not over.is_set():
                response = actor._rollout(asked)
                into.append((frozenset(response.extras["numbers"][0].tolist()), response.version))
                time.sleep(0.02)  # there is one interpreter lock for all of them
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=pair) for pair in zip(actors, snapshots, strict=True)]
    for reader in readers:
        reader.start()
    for version in range(1, 201):
        learner._train()
        if version == 50:
            learner.fail_next_export()
            with pytest.raises(WorkerError, match="Cannot copy out of meta tensor"):
                group.sync_weights()
            assert [actor.version for actor in actors] == [49] * 4
        else:
            push(group)
            assert [actor.version for actor in actors] == [version] * 4
    over.set()
    for reader in readers:
        reader.join(60)
    assert failures == []
    for seen_there in snapshots:
        assert all(numbers == {version} for numbers, version in seen_there)
        versions = [version for _, version in seen_there]
        assert versions == sorted(versions)
        assert 50 not in versions
        assert len(set(versions)) > 5


def test_a_policy_acts_with_the_buffers_memory_and_writes_into_memory_of_its_own():
    learner, actor, group = local_pair("Shared", Bare)
    other = Bare(group.config, PolicyRole.EVAL)
    other.init_eval()
    group.push(other, PolicyRole.EVAL)
    push(group)
    ours, theirs = (policy.net.weight.data_ptr() for policy in (actor, other))
    assert ours == theirs != learner.net.weight.data_ptr()
    # Whoever loads something by itself does not change what the others act with.
    actor.load_state_dict({"net": {name: t + 100 for name, t in actor.net.state_dict().items()}})
    assert torch.equal(actor.net.weight, learner.net.weight + 100)
    assert torch.equal(other.net.weight, learner.net.weight)


def test_a_request_that_waited_for_an_update_is_refused_if_it_failed_half_way():
    learner, actor, group = local_pair("Double", OwnLoading)
    learner._train()
    loading, go_on, outcomes = threading.Event(), threading.Event(), []

    def load_half(state_dict, *args, **kwargs):
        actor.tensors.t7.data = actor.tensors.t7.data + 1
        loading.set()
        assert go_on.wait(60)
        raise OSError("half is loaded")

    def request():
        try:
            outcomes.append(actor._rollout(batch([1]).items[0]))
        except WeightSyncError as error:
            outcomes.append(str(error))

    actor.__dict__["load_state_dict"] = load_half
    # A policy that is at no request puts weights in force in the thread that announces them.
    syncing, asking = threading.Thread(target=group.sync_weights), threading.Thread(target=request)
    syncing.start()
    assert loading.wait(60)
    asking.start()
    asking.join(0.2)
    assert asking.is_alive()
    go_on.set()
    asking.join(60)
    syncing.join(60)
    assert outcomes == ["the last weight update failed: half is loaded"]


def test_a_class_with_its_own_loading_gets_its_method_called():
    learner, actor, group = local_pair("Double", OwnLoading)
    learner._train()
    push(group)
    assert actor.loads == 2
    assert actor.tensors.t7.unique().item() == 1


def test_compiled_and_wrapped_learners_have_their_names_mapped():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    learner, actor, group = local_pair("Shared")
    learner.tensors = Wrapper(learner.tensors)
    learner.model_list = [("tensors", learner.tensors)]
    learner._train()
    push(group)
    assert (actor.version, actor.tensors.t7.unique().item()) == (1, 1)


def test_the_thread_of_the_updater_ends_with_its_policy(monkeypatch):
    monkeypatch.setattr("rlightning.weights.updater._LOOK_S", 0.01)
    before = set(threading.enumerate())  # of other tests some may be left, and end meanwhile
    learner, actor, group = local_pair("Double")
    actor.notify_update_weights()
    (updater,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "weight updater"]
    del learner, actor, group
    gc.collect()
    updater.join(30)
    assert not updater.is_alive()


def test_hooks_in_the_wrong_order_say_which_comes_first():
    learner, actor = Numbered(config_for("Double"), PolicyRole.TRAIN), Numbered(config_for("Double"), PolicyRole.EVAL)
    with pytest.raises(ProtocolError, match="call init_eval before init_weight_buffer"):
        actor.init_weight_buffer()
    learner.init_train(TRAIN)
    actor.init_eval()
    for call in (actor.update_weights_from_buffer, actor.update_weights):
        with pytest.raises(ProtocolError, match="call init_weight_buffer first"):
            call()
    with pytest.raises(ProtocolError, match="weight buffers are for policies of role 'eval'"):
        learner.init_weight_buffer()
    actor.init_weight_buffer()
    with pytest.raises(ProtocolError, match="no complete weights are in the buffer yet"):
        actor.update_weights_from_buffer()


def test_a_buffer_for_another_network_is_refused():
    config = config_for("Shared")
    other = EveryKind(config, PolicyRole.EVAL)
    other.init_eval()
    actor = Numbered(config, PolicyRole.EVAL)
    actor.init_eval()
    buffer = other._weight_port.make_buffer()
    try:
        with pytest.raises(WeightSyncError, match="laid out for another network than that of Numbered"):
            actor.init_weight_buffer(buffer)
    finally:
        buffer.unlink()
    actor.init_weight_buffer()
    learner = EveryKind(config, PolicyRole.TRAIN)
    learner.init_train(TRAIN)
    with pytest.raises(WeightSyncError, match=r"do not fit Numbered \(eval\): missing tensors.t1; .* and \d+ more"):
        actor.recv_weights(learner.send_weights(["actor"]))


@pytest.mark.parametrize("strategy", ["Double", "Shared", "Sharded"])
def test_an_eval_policy_whose_network_became_another_does_not_act_with_weights_of_the_one_before(strategy):
    learner, actor, group = local_pair(strategy)
    actor.tensors.t7.data = torch.zeros(2, 2)
    learner._train()
    group.sync_weights()
    with pytest.raises(WorkerError, match="laid out for another network than that of Numbered"):
        group.wait_for_eval_weight_update()
    with pytest.raises(WeightSyncError, match="laid out for another network"):
        actor._rollout(batch([1]).items[0])
    assert actor.tensors.t7.tolist() == [[0.0, 0.0], [0.0, 0.0]]


class Watched(Bare):
    """Acts by a view of its weights that it took when they were built."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Linear(2, 2, bias=False)
        self.weights = self.net.weight.detach().numpy()

    def rollout_step(self, env_ret):
        return PolicyResponse(torch.from_numpy(env_ret.observation.numpy() @ self.weights.T))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_views_that_an_author_took_of_the_weights_see_the_new_ones(strategy):
    learner, actor, group = local_pair(strategy, Watched)
    for value in (2.0, 5.0):
        with torch.no_grad():
            learner.net.weight.fill_(value)
        learner._train()
        push(group)
        # The second of two rows observes (1, 1).
        assert actor._rollout(batch([2]).items[0]).action.tolist() == [[0.0, 0.0], [2 * value, 2 * value]]


class LookingLater(Watched):
    """Takes the view when it is asked for the first time, or at each request anew where it keeps none."""

    keeps, weights = True, None

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.weights = None

    def rollout_step(self, env_ret):
        kept, self.weights = self.weights, self.net.weight.detach().numpy() if self.weights is None else self.weights
        answer = super().rollout_step(env_ret)
        self.weights = self.weights if self.keeps else kept
        return answer


@pytest.mark.parametrize("strategy", ["None", "Double"])
def test_views_that_an_author_took_at_a_request_see_the_new_ones(strategy):
    learner, actor, group = local_pair(strategy, LookingLater)
    for value in (2.0, 5.0, 7.0, 11.0):
        with torch.no_grad():
            learner.net.weight.fill_(value)
        learner._train()
        push(group)
        assert actor._rollout(batch([2]).items[0]).action.tolist() == [[0.0, 0.0], [2 * value, 2 * value]]
        assert group.compare_weights() == []
    # Whoever loads by itself changes what the view shows, too.
    actor.load_state_dict({"net": {"weight": torch.full((2, 2), 3.0)}})
    assert actor._rollout(batch([2]).items[0]).action.tolist() == [[0.0, 0.0], [6.0, 6.0]]


@pytest.mark.parametrize("strategy", ["Shared", "Sharded"])
def test_a_view_of_memory_that_others_act_with_is_refused_since_it_would_show_old_weights(strategy):
    learner, actor, group = local_pair(strategy, LookingLater)
    actor._rollout(batch([2]).items[0])
    learner._train()
    with pytest.raises(
        WorkerError, match=r"LookingLater \(eval\) holds a view of its weights that it took at a request"
    ):
        push(group)
    with pytest.raises(WeightSyncError, match="take it in construct_network"):
        actor._rollout(batch([2]).items[0])
    actor.weights = None  # without the view it goes on
    learner._train()
    push(group)
    assert group.compare_weights() == []


def test_pointers_are_exchanged_as_long_as_nobody_keeps_a_view():
    learner, actor, group = local_pair("Double", LookingLater)
    actor.keeps = False
    places = set()
    for _ in range(6):
        learner._train()
        push(group)
        actor._rollout(batch([2]).items[0])
        places.add(actor.net.weight.data_ptr())
    assert len(places) == 2


def test_what_is_tied_by_its_memory_stays_tied_when_a_policy_writes():
    learner, actor, group = local_pair("Double", EveryKind)
    push(group)
    actor.tied.weight = nn.Parameter(torch.empty(0))
    actor.tied.weight.data = actor.net.weight.data
    actor.load_state_dict(learner.get_trainable_parameters())
    assert actor.tied.weight.data_ptr() == actor.net.weight.data_ptr()


@pytest.mark.parametrize("strategy", ["None", "Double"])
def test_weights_that_were_written_over_while_they_were_copied_are_acted_with_by_nobody(strategy):
    learner, actor, group = local_pair(strategy)
    memory = Hasty.create_shared(learner._weight_port.layout(), learner._weight_port.runs())
    memory.unlink()
    for policy in (learner, actor):
        policy._weight_port.map(memory)
    learner._train()
    learner.send_weights(())
    with pytest.raises(WeightSyncError, match="version 1 was written over while it was copied"):
        actor.recv_weights_ipc(None)
    if strategy == "None":
        with pytest.raises(WeightSyncError, match="the last weight update failed: version 1 was written over"):
            actor._rollout(batch([1]).items[0])
    else:
        assert actor._rollout(batch([1]).items[0]).version == 0  # they wait in the buffer, and are not complete there
    push(group)
    assert group.compare_weights() == []


def test_tied_weights_stay_tied():
    learner, actor, group = local_pair("Double", EveryKind)
    assert actor.tied.weight.data_ptr() == actor.net.weight.data_ptr()
    with torch.no_grad():
        learner.net.weight += 1
    learner.version += 1
    push(group)
    assert group.compare_weights() == []
    assert actor.tied.weight.data_ptr() == actor.net.weight.data_ptr()


class Halting(Numbered):
    """Stands still in the midst of a training step, when some of its tensors are new and others old."""

    def train(self, *args, **kwargs):
        first, *others = self.tensors.state_dict(keep_vars=True).values()
        with torch.no_grad():
            first += 1
            self.is_in.set()
            assert self.may_go_on.wait(60)
            for tensor in others:
                tensor += 1
        return {}


def test_weights_that_another_thread_asks_for_are_not_those_of_half_a_training_step():
    learner = Halting(config_for("Shared"), PolicyRole.TRAIN)
    learner.init_train(TRAIN)
    learner.is_in, learner.may_go_on = threading.Event(), threading.Event()
    training = threading.Thread(target=learner._train)
    sent = []
    sending = threading.Thread(target=lambda: sent.append(learner.send_weights(["all"])))
    training.start()
    assert learner.is_in.wait(60)
    sending.start()
    sending.join(0.2)
    assert sent == []
    learner.may_go_on.set()
    for thread in (training, sending):
        thread.join(60)
    tensors = [tensor for module in sent[0].views().values() for tensor in module.values()]
    assert {float(number) for tensor in tensors for number in tensor.unique()} == {1.0}


class NothingKept(Bare):
    """Has buffers of its own that are not kept, and lists a module in which there is nothing."""

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.register_buffer("hidden", torch.zeros(3), persistent=False)


class ListingNothing(NothingKept):
    """Says so in its own list of what acts."""

    def get_trainable_parameters(self):
        return {"net": dict(self.net.named_parameters()), "nothing": {}}

    def load_state_dict(self, state_dict, *args, **kwargs):
        self.net.load_state_dict(state_dict["net"])
        assert state_dict["nothing"] == {}


@pytest.mark.parametrize("cls", [NothingKept, ListingNothing])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_policy_whose_own_buffers_are_not_kept_gets_weights(strategy, cls):
    learner, actor, group = local_pair(strategy, cls)
    for _ in range(3):
        with torch.no_grad():
            learner.net.weight += 1.0
        learner._train()
        push(group)
        assert group.compare_weights() == []
        assert torch.equal(actor.net.weight, learner.net.weight)


class ParametersOnly(Bare):
    """Lists and loads nothing but parameters, in a way that knows no other names."""

    def construct_network(self, env_meta, *args, **kwargs):
        self.net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.critic = nn.BatchNorm1d(2)

    def get_trainable_parameters(self):
        return {"net": dict(self.net.named_parameters())}

    def load_state_dict(self, state_dict, *args, **kwargs):
        with torch.no_grad():
            for name, value in state_dict["net"].items():
                self.net.get_parameter(name).copy_(value)

    def train(self, *args, **kwargs):
        for module in (self.net, self.critic):
            module(torch.randn(8, 2))  # batch normalisation takes note of what it sees
        return {}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_buffers_that_an_author_leaves_out_travel_with_the_parameters_of_their_module(strategy):
    learner, actor, group = local_pair(strategy, ParametersOnly)
    learner._train()
    assert {mismatch.name for mismatch in group.compare_weights()} == {
        "version",
        "net.1.running_mean",
        "net.1.running_var",
        "net.1.num_batches_tracked",
    }
    push(group)
    assert group.compare_weights() == []
    for held, given in zip(actor.net.state_dict().values(), learner.net.state_dict().values(), strict=True):
        assert torch.equal(held, given)
    # Of a module that is not listed, nothing is sent.
    assert (learner.critic.num_batches_tracked, actor.critic.num_batches_tracked) == (1, 0)
