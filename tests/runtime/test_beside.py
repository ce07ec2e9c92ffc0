"""Calls beside this one answer with a future that is pending, also in one process."""

import threading
import time

import pytest

from rlightning.errors import CallTimeout, WorkerError
from rlightning.runtime import as_handle, gather, wait
from rlightning.runtime.future import LocalFuture, PendingFuture
from tests.runtime.workers import Patient, Worker

LONG = 60.0


class Quitter(Patient):
    """Ends the thread of a call."""

    def exit_thread(self):
        raise SystemExit(3)


@pytest.fixture
def here():
    worker = Quitter()
    yield as_handle(worker, "here")
    worker.may_answer.set()


def test_two_calls_on_one_object_overlap(here):
    # Each waits for the other one.
    assert gather([here.call_beside("a", Worker.meet, i) for i in range(2)], LONG) == [0, 1]


def test_a_pending_call_is_waited_for_and_passed_on_unopened(here):
    slow = here.call_beside("a", Quitter.hold, 5)
    passed_on = here.call_beside("b", Worker.echo, slow, and_more=LocalFuture(1))
    assert not slow.done()
    assert not passed_on.done()
    here.target.may_answer.set()
    assert passed_on.result(LONG) == (5, 1)
    assert slow.done()
    # A call that is no pending one itself opens it, too.
    assert here.call(Worker.echo, slow).result() == 5


def test_wait_and_gather_tell_pending_from_ready_in_order(here):
    quick, slow = here.call_beside("a", Worker.echo, 1), here.call_beside("b", Quitter.hold, 2)
    futures = [slow, LocalFuture(0), quick, slow]
    assert wait(futures, at_least=2, timeout=LONG) == ([futures[1], quick], [slow, slow])
    assert wait(futures, at_least=0) == ([futures[1], quick], [slow, slow])
    with pytest.raises(CallTimeout, match=r"2 of 4 calls answered within 0\.05 s, 3 wanted"):
        wait(futures, at_least=3, timeout=0.05)
    with pytest.raises(CallTimeout, match=r"no answer within 0\.05 s from 2 calls: here\.hold, here\.hold"):
        gather(futures, 0.05)
    here.target.may_answer.set()
    assert wait(futures, at_least=4, timeout=LONG) == (futures, [])
    assert gather(futures, LONG) == [2, 0, 1, 2]


def test_a_failure_beside_is_raised_where_the_result_is_wanted(here):
    failed = here.call_beside("a", Worker.fail)
    for future in (failed, here.call_beside("b", Worker.echo, failed), here.call(Worker.echo, failed)):
        with pytest.raises(WorkerError, match="the motor is off") as caught:
            future.result(LONG)
        assert (caught.value.worker, caught.value.method) == ("here", "fail")
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_call_that_ends_its_thread_is_a_failure_too(here):
    with pytest.raises(WorkerError, match="SystemExit: 3"):
        here.call_beside("a", Quitter.exit_thread).result(LONG)


class OtherFuture(PendingFuture):
    """Another kind, as those of remote workers are."""

    __slots__ = ()


def test_of_two_kinds_that_pend_whichever_is_first_is_found():
    for first in range(2):
        futures = [PendingFuture("a", "m"), OtherFuture("b", "m")]
        setter = threading.Timer(0.02, futures[first].settle, [LocalFuture(1)])
        setter.start()
        assert wait(futures, at_least=1, timeout=LONG) == ([futures[first]], [futures[1 - first]])
        setter.join()
    began = time.monotonic()
    with pytest.raises(CallTimeout):
        wait([PendingFuture("a", "m"), OtherFuture("b", "m")], at_least=1, timeout=0.05)
    assert time.monotonic() - began >= 0.05
