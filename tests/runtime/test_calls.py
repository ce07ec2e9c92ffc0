"""A call answers with a future, here as there; a failure says who did what."""

import pickle
import traceback
from typing import NamedTuple

import pytest

from rlightning.errors import CallTimeout, WorkerDied, WorkerError
from rlightning.runtime import WorkerHandle, as_handle, gather
from rlightning.runtime.future import LocalFuture, resolve, wait
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Locked, Unlike, Worker

LONG = 60.0
"""Seconds that any answer here may take on a busy machine."""


class Handles(NamedTuple):
    here: WorkerHandle
    first: WorkerHandle
    second: WorkerHandle
    remote: bool


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def handles(request):
    """A worker of this process, and two that are local or remote; shared by all tests, since processes start slowly."""
    remote = request.param == "ray"
    if remote:
        request.getfixturevalue("ray_cluster")
    pool = WorkerPool()
    specs = [WorkerSpec(Worker, (), f"worker[{i}]", remote, num_cpus=0.01) for i in range(2)]
    first, second = pool.start(specs)
    yield Handles(as_handle(Worker(), "here"), as_handle(first, "worker[0]"), as_handle(second, "worker[1]"), remote)
    pool.stop()


def test_a_call_gives_a_future_of_the_value(handles):
    future = handles.first.call(Worker.echo, {"x": [1, None]})
    assert future.result(LONG) == {"x": [1, None]}
    assert future.done()
    assert future.result() == resolve(future) == {"x": [1, None]}
    assert handles.first.call(Worker.echo, 1, and_more=2).result() == (1, 2)


def test_a_handle_tells_who_and_where(handles):
    info = handles.first.info()
    assert (info.name, info.remote) == ("worker[0]", handles.remote)
    assert (info.node == "local") is not handles.remote
    assert handles.here.info().node == "local"


def test_values_are_gathered_in_order_whatever_their_kinds(handles):
    workers = [handles.first, handles.here, handles.second] * 3
    futures = [worker.call(Worker.echo, i) for i, worker in enumerate(workers)]
    assert gather(futures, LONG) == list(range(9))
    assert gather([], LONG) == []
    assert gather(iter(futures[:1])) == [0]


def test_a_future_is_passed_on_unopened_from_worker_to_worker(handles):
    chain = handles.here.call(Worker.echo, "a")
    for worker in (handles.first, handles.second, handles.here, handles.first):
        chain = worker.call(Worker.pair, chain, 1)
        chain = worker.call(Worker.echo, chain)
    value = chain.result(LONG)
    for _ in range(4):
        (value, one), second = value
        assert (one, second) == (1, "second")
    assert value == "a"


def test_a_future_is_opened_also_as_a_named_argument(handles):
    for worker in (handles.here, handles.first):
        for source in (handles.here, handles.second):
            inner = source.call(Worker.echo, 5)
            assert worker.call(Worker.echo, 1, and_more=inner).result(LONG) == (1, 5)


def test_the_items_of_a_list_have_futures_of_their_own(handles):
    futures = handles.first.call_split(2, Worker.pair, handles.here.call(Worker.echo, 7))
    assert gather(futures, LONG) == [[7], "second"]
    failed = handles.first.call_split(2, Worker.fail)
    for future in failed:
        with pytest.raises(WorkerError, match="the motor is off"):
            future.result(LONG)
    with pytest.raises(ValueError, match="one item needs no splitting"):
        handles.first.call_split(1, Worker.pair)


def test_a_list_of_another_length_than_told_is_an_error_of_the_worker(handles):
    for future in handles.first.call_split(3, Worker.pair):
        with pytest.raises(WorkerError, match=r"returned 2|has 2 items") as caught:
            future.result(LONG)
        assert (caught.value.worker, caught.value.method) == ("worker[0]", "pair")


def test_a_failure_says_who_did_what_and_carries_its_cause(handles):
    future = handles.first.call(Worker.fail)
    with pytest.raises(WorkerError, match="the motor is off") as caught:
        future.result(LONG)
    error = caught.value
    assert not isinstance(error, WorkerDied)
    assert (error.worker, error.method) == ("worker[0]", "fail")
    assert (error.node == "local") is not handles.remote
    assert isinstance(error.__cause__, KeyError)
    assert "raise KeyError" in "".join(traceback.format_exception(error))
    # It can cross to a further process, and be raised again.
    arrived = pickle.loads(pickle.dumps(error))
    assert (type(arrived), str(arrived), arrived.worker) == (WorkerError, str(error), "worker[0]")
    with pytest.raises(WorkerError, match="the motor is off"):
        future.result()
    assert future.done()


@pytest.mark.parametrize("kind", [Unlike, Locked])
def test_an_exception_that_cannot_be_pickled_keeps_its_text(handles, kind):
    with pytest.raises(WorkerError) as caught:
        handles.first.call(Worker.fail_by, kind).result(LONG)
    assert caught.value.message == f"{kind.__name__}: the knee is at 3.0\nof at most 2.0"
    assert (caught.value.worker, caught.value.method) == ("worker[0]", "fail_by")


def pass_on(future, workers):
    for worker in workers:
        future = worker.call(Worker.echo, future)
    return future


def test_a_failing_argument_blames_the_call_that_failed_first(handles):
    there, here = handles.second, handles.here
    for culprit, name in ((handles.first, "worker[0]"), (handles.here, "here")):
        for path in ((there,), (here,), (there, here), (here, there)):
            with pytest.raises(WorkerError, match="the motor is off") as caught:
                pass_on(culprit.call(Worker.fail), path).result(LONG)
            assert (caught.value.worker, caught.value.method) == (name, "fail")
            assert isinstance(caught.value.__cause__, KeyError)


def test_a_failure_that_many_calls_pass_on_keeps_one_traceback(handles):
    here = handles.here
    first = here.call(Worker.fail)
    last = pass_on(first, [here] * 100)
    lengths = []
    for future in (first, last, last):
        with pytest.raises(WorkerError) as caught:
            future.result()
        # What pytest adds is this test's own frame; what a long rollout would add is a hundred times that of a call.
        lengths.append(len(traceback.format_exception(caught.value)))
    assert lengths[0] == lengths[1] == lengths[2]


def test_a_call_whose_argument_failed_is_not_made(handles):
    before = handles.here.call(Worker.get_calls).result()[:]
    handles.here.call(Worker.echo, handles.first.call(Worker.fail))
    assert handles.here.call(Worker.get_calls).result() == before


def test_one_failure_among_many_is_raised_by_its_name(handles):
    workers = [handles.first, handles.here, handles.second]
    futures = [worker.call(Worker.echo, i) for i, worker in enumerate(workers)]
    futures.insert(2, handles.second.call(Worker.fail))
    with pytest.raises(WorkerError, match="the motor is off") as caught:
        gather(futures, LONG)
    assert (caught.value.worker, caught.value.method) == ("worker[1]", "fail")
    # The others are not lost.
    assert gather(futures[:2] + futures[3:], LONG) == [0, 1, 2]


def test_a_worker_goes_on_after_a_failure(handles):
    handles.first.call(Worker.fail)
    assert handles.first.call(Worker.echo, 3).result(LONG) == 3


def test_wait_splits_ready_from_pending_in_order(handles):
    futures = [worker.call(Worker.echo, i) for i, worker in enumerate((handles.first, handles.here, handles.second))]
    ready, pending = wait(futures, at_least=3, timeout=LONG)
    assert (ready, pending) == (futures, [])
    assert wait([], at_least=1, timeout=LONG) == ([], [])
    # The same future twice is two.
    twice = [futures[0], futures[0]]
    assert wait(twice, at_least=2, timeout=LONG) == (twice, [])


def test_local_futures_are_ready_at_once():
    failed = LocalFuture(error=WorkerError("no", "w", "m"))
    assert failed.done()
    assert wait([failed, LocalFuture(1)], at_least=2, timeout=0.0)[1] == []
    with pytest.raises(WorkerError):
        failed.result()


@pytest.mark.ray
def test_a_pending_call_times_out_by_name_while_the_rest_is_ready(ray_cluster):
    pool = WorkerPool()
    specs = [WorkerSpec(Worker, (), f"worker[{i}]", True, num_cpus=0.01) for i in range(2)]
    quick, slow = (as_handle(worker, spec.name) for worker, spec in zip(pool.start(specs), specs, strict=True))
    try:
        futures = [slow.call(Worker.sleep, 600), quick.call(Worker.echo, 1), LocalFuture(2)]
        assert wait(futures, at_least=2, timeout=LONG) == (futures[1:], futures[:1])
        assert not futures[0].done()
        assert wait(futures, at_least=0) == (futures[1:], futures[:1])
        with pytest.raises(CallTimeout, match=r"2 of 3 calls answered within 0\.05 s, 3 wanted"):
            wait(futures, at_least=3, timeout=0.05)
        with pytest.raises(CallTimeout, match=r"no answer within 0\.05 s from 1 calls: worker\[1\]\.sleep"):
            gather(futures, 0.05)
        with pytest.raises(TimeoutError):
            futures[0].result(0.05)
    finally:
        pool.stop()


@pytest.mark.ray
def test_a_process_that_is_gone_is_named_also_by_calls_that_waited_for_it(ray_cluster):
    pool = WorkerPool()
    specs = [WorkerSpec(Worker, (), f"worker[{i}]", True, num_cpus=0.01) for i in range(2)]
    dying, other = (as_handle(worker, spec.name) for worker, spec in zip(pool.start(specs), specs, strict=True))
    try:
        with pytest.raises(WorkerDied, match="the process of the worker is gone") as caught:
            dying.call(Worker.exit).result(LONG)
        assert (caught.value.worker, caught.value.method) == ("worker[0]", "exit")
        with pytest.raises(WorkerDied, match="gone") as caught:
            dying.call(Worker.echo, 1).result(LONG)
        assert pickle.loads(pickle.dumps(caught.value)).worker == "worker[0]"
        for worker in (other, as_handle(Worker(), "here")):
            with pytest.raises(WorkerDied, match="gone") as caught:
                worker.call(Worker.echo, dying.call(Worker.echo, 1)).result(LONG)
            assert caught.value.worker == "worker[0]"
        assert other.call(Worker.echo, 2).result(LONG) == 2
    finally:
        pool.stop()
