"""Calls that wait for each other come back, wherever their workers live."""

import threading

import pytest

from rlightning.errors import CallTimeout, PeerLost, WorkerError
from rlightning.runtime import Call, LocalFuture, as_handle, collective_call
from rlightning.runtime.future import PendingFuture


class Meeting:
    """Waits for others at barriers; a worker of this process."""

    def __init__(self, barrier=None):
        self.barrier, self.calls = barrier, []

    def meet(self, name, wait_s=10.0):
        self.calls.append(name)
        if self.barrier is not None:
            self.barrier.wait(wait_s)
        return name, threading.current_thread() is threading.main_thread()

    def fail(self, error):
        raise error

    def wait_for(self, event, error=None):
        event.wait(10)
        if error is not None:
            raise error


def handles(count):
    barrier = threading.Barrier(count)
    return [as_handle(Meeting(barrier), f"train[{i}]") for i in range(count)]


def test_local_workers_meet_and_results_keep_their_order():
    results = collective_call([Call(handle, Meeting.meet, (i,)) for i, handle in enumerate(handles(3))], 30)
    assert results == [(0, False), (1, False), (2, False)]


def test_a_single_local_worker_runs_in_the_callers_thread():
    assert collective_call([Call(as_handle(Meeting()), Meeting.meet, ("alone",))]) == [("alone", True)]
    assert collective_call([]) == []


def test_arguments_may_be_futures_and_named():
    call = Call(as_handle(Meeting()), Meeting.meet, (LocalFuture("opened"),), {"wait_s": LocalFuture(1.0)})
    assert collective_call([call])[0][0] == "opened"


def test_calls_on_one_worker_run_in_the_order_given():
    left, right = handles(2)
    calls = [Call(worker, Meeting.meet, (step,)) for step in range(5) for worker in (left, right)]
    assert [name for name, _ in collective_call(calls, 30)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert left.target.calls == right.target.calls == list(range(5))


@pytest.mark.parametrize("vain", [CallTimeout("waited"), PeerLost("gone")])
def test_of_several_failures_the_one_that_did_not_just_wait_is_raised(vain):
    first, second = (as_handle(Meeting(), f"train[{i}]") for i in range(2))
    calls = [Call(first, Meeting.fail, (vain,)), Call(second, Meeting.fail, (ArithmeticError("the cause"),))]
    with pytest.raises(WorkerError, match="the cause") as caught:
        collective_call(calls, 30)
    assert caught.value.worker == "train[1]"
    with pytest.raises(WorkerError, match=str(vain)):
        collective_call(calls[:1], 30)


@pytest.mark.parametrize("slower", [0, 1])
def test_of_several_causes_the_first_in_order_is_raised_whichever_came_first(slower):
    handles = [as_handle(Meeting(), f"train[{i}]") for i in range(2)]
    over = [threading.Event(), threading.Event()]
    over[1 - slower].set()
    threading.Timer(0.2, over[slower].set).start()
    calls = [Call(h, Meeting.wait_for, (over[i], ArithmeticError(f"cause {i}"))) for i, h in enumerate(handles)]
    with pytest.raises(WorkerError, match="cause 0") as caught:
        collective_call(calls, 30)
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_a_failure_says_more_than_another_call_that_is_late():
    never = threading.Event()
    first, second = (as_handle(Meeting(), f"train[{i}]") for i in range(2))
    try:
        with pytest.raises(WorkerError, match="the cause"):
            collective_call(
                [Call(first, Meeting.wait_for, (never,)), Call(second, Meeting.fail, (ArithmeticError("the cause"),))],
                0.2,
            )
    finally:
        never.set()


def test_a_call_that_is_not_over_in_time_is_named():
    never = threading.Event()
    first, second = (as_handle(Meeting(), f"train[{i}]") for i in range(2))
    try:
        with pytest.raises(CallTimeout, match=r"within 0\.2 s from 1 calls: train\[1\]\.wait_for"):
            collective_call([Call(first, Meeting.meet, ("here",)), Call(second, Meeting.wait_for, (never,))], 0.2)
    finally:
        never.set()


class Wall:
    """Waits for the other workers at a store of torch.distributed, from any process."""

    def __init__(self, port=None):
        from rlightning.distributed import Rendezvous

        self.meeting = Rendezvous.host() if port is None else Rendezvous.join("127.0.0.1", port, rank=0)

    def get_port(self):
        return self.meeting.port

    def meet(self, own, other):
        store = self.meeting.store("wall")
        store.set(own, "here")
        return store.get(other).decode()


@pytest.mark.ray
def test_local_and_remote_workers_meet(ray_cluster):
    from rlightning.runtime.spawn import WorkerPool, WorkerSpec

    pool = WorkerPool()
    try:
        (remote,) = pool.start([WorkerSpec(Wall, (), "remote", True, num_cpus=0.01)])
        there = as_handle(remote, "remote")
        here = as_handle(Wall(there.call(Wall.get_port).result(60)), "here")
        for left, right in ((here, there), (there, here)):
            assert (
                collective_call([Call(left, Wall.meet, ("a", "b")), Call(right, Wall.meet, ("b", "a"))], 60)
                == ["here"] * 2
            )
    finally:
        pool.stop()


class Silent:
    """A worker elsewhere that never answers."""

    name = "train[1]"

    def call(self, method, *args, **kwargs):
        return PendingFuture(self.name, method.__name__)


def test_a_call_that_is_late_is_told_with_all_the_seconds_that_there_were():
    here = as_handle(Meeting(), "train[0]")
    calls = [Call(here, Meeting.meet, ("here",)), *[Call(Silent(), Meeting.meet)] * 2]
    with pytest.raises(CallTimeout, match=r"^no answer within 0\.2 s from 2 calls: (train\[1\]\.meet(, |$)){2}"):
        collective_call(calls, 0.2)
