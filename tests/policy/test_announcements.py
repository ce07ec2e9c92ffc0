"""New weights are announced and waited for by fast channels: what fails, dies or is late is named; nothing is lost."""

import os
import signal
import sys
import threading
import time

import pytest

from rlightning.config import PolicyConfig
from rlightning.errors import WeightSyncError, WorkerDied, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.policy_group import PolicyGroup
from rlightning.runtime import as_handle, gather
from rlightning.runtime.fast_channel import SocketChannel
from rlightning.runtime.local import LocalHandle
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.policy.policies import OwnLoading, batch
from tests.policy.pushes import TRAIN, config_for, push

BUFFERED = ["Double", "Shared", "Sharded"]
LONG = 60.0


class Observed(OwnLoading):
    """Tells of itself, and can hold up updates as a request does that takes long."""

    delay_s = 0.0

    def get_pid(self):
        return os.getpid()

    def get_state(self):
        return self.version, int(self.tensors.t7.unique())

    def hold_requests(self):
        self.may_end, is_in = threading.Event(), threading.Event()

        def request():
            with self._gate.request():
                is_in.set()
                assert self.may_end.wait(LONG)

        threading.Thread(target=request, daemon=True).start()
        assert is_in.wait(LONG)

    def notify_update_weights(self):
        time.sleep(self.delay_s)
        super().notify_update_weights()

    def delay_announcements(self, seconds):
        self.delay_s = seconds

    def let_requests_go(self):
        self.may_end.set()


class Run:
    """A learner and two eval policies, all here or each a process."""

    def __init__(self, remote):
        places = [(PolicyRole.TRAIN, 0), (PolicyRole.EVAL, 0), (PolicyRole.EVAL, 1)]
        self.remote, self.pool = remote, WorkerPool()
        self.specs = [
            WorkerSpec(Observed, (PolicyConfig(), role), f"{role.value}[{i}]", remote, 0.01, 0.0, {"weights": 1})
            for role, i in places
        ]
        self.workers = self.pool.start(self.specs)

    def group(self, strategy):
        group = PolicyGroup(self.workers[:1], self.workers[1:], config_for(strategy), call_timeout_s=LONG)
        group.init(TRAIN)
        group.init_weight_buffer()
        push(group)
        return group

    def ask(self, index, method, *args):
        return as_handle(self.workers[index], self.specs[index].name).call(method, *args).result(LONG)

    def replace(self, index):
        self.workers[index] = self.pool.replace(self.workers[index], self.specs[index])

    def train(self):
        self.ask(0, Observed._train)

    def states(self):
        return [self.ask(index, Observed.get_state) for index in (1, 2)]


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def run(request):
    remote = request.param == "ray"
    if remote:
        request.getfixturevalue("ray_cluster")
    run = Run(remote)
    yield run
    run.pool.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are none by a socket")
@pytest.mark.parametrize("strategy", BUFFERED)
def test_eval_policies_of_this_machine_hear_of_new_weights_by_a_socket(run, strategy):
    channels = run.group(strategy)._weights._way._channels
    assert [type(channel) for channel in channels] == [SocketChannel if run.remote else LocalHandle] * 2


def test_who_is_late_is_named_and_the_next_wait_goes_on_waiting(run):
    group = run.group("Shared")
    run.train()
    run.ask(2, Observed.hold_requests)
    group.sync_weights()
    for _ in range(2):
        with pytest.raises(WeightSyncError, match=r"not in force after 0\.2 s at eval\[1\]$"):
            group.wait_for_eval_weight_update(0.2)
    run.ask(2, Observed.let_requests_go)
    group.wait_for_eval_weight_update(LONG)
    assert run.states() == [(1, 1)] * 2


def test_two_announcements_before_one_update_are_both_answered(run):
    group = run.group("Shared")
    run.train()
    run.ask(1, Observed.hold_requests)
    group.send_weights()
    group.notify_update_weights()
    group.notify_update_weights()
    with pytest.raises(WeightSyncError, match=r"at eval\[0\]$"):
        group.wait_for_eval_weight_update(1.0)
    run.ask(1, Observed.let_requests_go)
    group.wait_for_eval_weight_update(LONG)
    assert run.states() == [(1, 1)] * 2


@pytest.fixture
def slow_news(run):
    """Have the first eval policy hear of new weights later than of all else."""
    run.ask(1, Observed.delay_announcements, 0.2)
    yield
    run.ask(1, Observed.delay_announcements, 0.0)


@pytest.mark.parametrize("strategy", BUFFERED)
def test_requests_that_follow_a_push_are_answered_by_its_weights_though_nobody_waits(run, slow_news, strategy):
    group = run.group(strategy)
    for sizes, options in [([2, 1, 1], {}), ([1, 1], {"evaluation": True})]:
        run.train()
        version = group.sync_weights()
        answers = gather(group.rollout_batch(batch(sizes), **options).items, LONG)
        assert [answer.version for answer in answers] == [version] * len(sizes)
        assert all((answer.extras["numbers"] == version).all() for answer in answers)
    # Once they are known to be in force, no request says any more what it needs.
    assert group._weights.pending
    group.wait_for_eval_weight_update(LONG)
    assert not group._weights.pending


def test_a_request_that_needs_weights_that_failed_fails_and_does_not_wait(run, slow_news):
    group = run.group("Double")
    run.train()
    run.ask(1, Observed.fail_next_loading)
    group.sync_weights()
    late, fine = group.rollout_batch(batch([1, 1])).items
    with pytest.raises(WorkerError, match="this cannot be loaded"):
        late.result(LONG)
    assert fine.result(LONG).version == 1
    run.train()
    push(group)


@pytest.mark.parametrize("strategy", BUFFERED)
def test_a_state_that_is_loaded_comes_after_weights_that_are_on_their_way(run, slow_news, strategy):
    group = run.group(strategy)
    state = group.get_training_state()
    for load in (group.load_training_state, group.state.load_weights):
        run.train()
        group.sync_weights()
        load(state)
        assert run.states() == [(0, 0)] * 2
        assert group.verify_eval_weight_consistency(rtol=0)
        answers = gather(group.rollout_batch(batch([1, 1])).items, LONG)
        assert [answer.version for answer in answers] == [0, 0]


def test_a_failure_is_raised_by_every_wait_until_a_push_mends_it(run):
    group = run.group("Shared")
    run.train()
    run.ask(2, Observed.fail_next_loading)
    group.sync_weights()
    for _ in range(2):
        with pytest.raises(WorkerError, match="this cannot be loaded") as caught:
            group.wait_for_eval_weight_update(LONG)
        assert (caught.value.worker, type(caught.value.__cause__)) == ("eval[1]", WeightSyncError)
    run.train()
    push(group)
    group.wait_for_eval_weight_update(LONG)
    assert run.states() == [(2, 2)] * 2


def test_an_eval_policy_that_stops_or_dies_is_named_within_the_time_limit(run):
    if not run.remote:
        pytest.skip("they are this process")
    group = run.group("Shared")
    run.train()
    pid = run.ask(2, Observed.get_pid)
    os.kill(pid, signal.SIGSTOP)
    group.sync_weights()
    with pytest.raises(WeightSyncError, match=r"not in force after 0\.2 s at eval\[1\]$"):
        group.wait_for_eval_weight_update(0.2)
    os.kill(pid, signal.SIGCONT)
    group.wait_for_eval_weight_update(LONG)
    assert run.states() == [(1, 1)] * 2
    run.train()
    os.kill(pid, signal.SIGSTOP)
    group.sync_weights()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="the process of the worker is gone") as caught:
        group.wait_for_eval_weight_update(LONG)
    assert caught.value.worker == "eval[1]"
    # The other one goes on without it.
    group.pop(PolicyRole.EVAL)
    run.train()
    push(group)
    assert run.ask(1, Observed.get_state) == (3, 3)
    run.replace(2)
