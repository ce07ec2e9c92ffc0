"""Calls by a channel of their own run beside the others; those of one channel keep their order."""

import pytest

from rlightning.runtime import as_handle, gather
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Worker

LONG = 60.0
"""Seconds that any answer here may take on a busy machine."""


def test_every_channel_of_a_local_worker_is_the_worker_itself():
    handle = as_handle(Worker(), "here")
    assert handle.channel("weights") is handle


@pytest.fixture(scope="module")
def workers(ray_cluster):
    """Two workers with one channel of one thread, and one without channels."""
    pool = WorkerPool()
    channels = [{"weights": 1}, {"weights": 1}, {}]
    specs = [
        WorkerSpec(Worker, (), f"worker[{i}]", True, num_cpus=0.01, channels=own) for i, own in enumerate(channels)
    ]
    yield [as_handle(worker, spec.name) for worker, spec in zip(pool.start(specs), specs, strict=True)]
    pool.stop()


@pytest.mark.ray
def test_a_call_by_a_channel_runs_while_another_one_still_does(workers):
    # Each waits for the other one: one after the other they would never end.
    futures = [workers[0].call(Worker.meet, 1), workers[0].channel("weights").call(Worker.meet, 2)]
    assert gather(futures, LONG) == [1, 2]


@pytest.mark.ray
def test_a_call_that_lacks_its_argument_does_not_hold_up_other_channels(workers):
    handle, by_channel = workers[0], workers[0].channel("weights")
    waiting = by_channel.call(Worker.echo, workers[1].call(Worker.meet, 1))
    assert handle.call(Worker.echo, 2).result(LONG) == 2
    assert not waiting.done()
    workers[1].channel("weights").call(Worker.meet, 3)
    assert waiting.result(LONG) == 1


@pytest.mark.ray
def test_the_calls_of_one_channel_keep_their_order(workers):
    by_channel = workers[0].channel("weights")
    before = len(workers[0].call(Worker.get_log).result(LONG))
    gather([handle.call(Worker.log, i) for i in range(50) for handle in (workers[0], by_channel)], LONG)
    log = workers[0].call(Worker.get_log).result(LONG)[before:]
    threads = {thread for thread, _ in log}
    assert len(threads) == 2
    for thread in threads:
        assert [value for by, value in log if by == thread] == list(range(50))


@pytest.mark.ray
def test_the_items_of_a_list_come_by_a_channel_too(workers):
    assert gather(workers[0].channel("weights").call_split(2, Worker.pair, 7), LONG) == [[7], "second"]


@pytest.mark.ray
def test_a_worker_without_the_channel_is_called_as_ever(workers):
    assert workers[2].channel("weights") is workers[2]
    assert workers[0].channel("nothing") is workers[0]
    assert workers[2].channel("weights").call(Worker.echo, 3).result(LONG) == 3
