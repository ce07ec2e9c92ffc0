"""One value for several workers is sent once, and stays what it is for those who live here."""

import pytest

from rlightning.errors import WorkerError
from rlightning.runtime import LocalFuture, as_handle, gather, share
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Parcel, Worker


@pytest.fixture
def remote(ray_cluster):
    """Three workers that are processes of their own."""
    pool = WorkerPool()
    specs = [WorkerSpec(Worker, (), f"worker[{i}]", True, num_cpus=0.01) for i in range(3)]
    yield [as_handle(worker) for worker in pool.start(specs)]
    pool.stop()


def test_workers_that_live_here_get_the_value_itself():
    value = LocalFuture(Parcel(1))
    handles = [as_handle(Worker()) for _ in range(3)]
    answers = gather([h.call(Worker.echo, own) for h, own in zip(handles, share(value, handles), strict=True)])
    assert [answer is value.result() for answer in answers] == [True] * 3


def test_nobody_gets_nothing():
    assert share(LocalFuture(1), []) == []


@pytest.mark.ray
def test_a_large_value_of_this_process_is_packed_once_for_all_remote_workers(remote):
    value, here = LocalFuture(Parcel(num_bytes=10**6)), as_handle(Worker())
    Parcel.packed = 0
    gather([handle.call(Worker.echo, value) for handle in remote])
    assert Parcel.packed == 3  # as it is, it goes with each call

    Parcel.packed = 0
    handles = [*remote, here]
    payloads = share(value, handles)
    answers = gather([h.call(Worker.echo, own) for h, own in zip(handles, payloads, strict=True)])
    assert Parcel.packed == 1
    assert answers[3] is value.result()
    assert [answer.num_bytes for answer in answers] == [10**6] * 4


@pytest.mark.ray
def test_what_need_not_be_stored_is_passed_on_as_it_is(remote):
    large, small = LocalFuture(Parcel(num_bytes=10**6)), LocalFuture(Parcel(num_bytes=1000))
    assert share(large, [remote[0], as_handle(Worker())]) == [large, large]  # the only one elsewhere
    assert share(small, remote) == [small] * 3
    elsewhere = remote[0].call(Worker.echo, 1)
    assert share(elsewhere, remote) == [elsewhere] * 3


def test_a_value_that_could_not_be_made_is_not_shared(runtime):
    handles = [as_handle(runtime.make(Worker)) for _ in range(2)]
    value = as_handle(Worker(), "sender").call(Worker.fail)
    with pytest.raises(WorkerError, match="the motor is off"):
        gather([h.call(Worker.echo, own) for h, own in zip(handles, share(value, handles), strict=True)])
