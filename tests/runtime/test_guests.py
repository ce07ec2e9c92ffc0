"""A guest answers as any worker does, from the process of its host."""

import pytest

from rlightning.errors import CallTimeout, ProtocolError, WorkerError
from rlightning.runtime import as_handle, gather
from rlightning.runtime.guests import end_guest, guest_here, start_guest
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Worker

LONG = 60.0


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def host(request):
    remote = request.param == "ray"
    if remote:
        request.getfixturevalue("ray_cluster")
    pool = WorkerPool()
    (worker,) = pool.start([WorkerSpec(Worker, (), "host", remote, num_cpus=0.01)])
    yield as_handle(worker, "host")
    pool.stop()


@pytest.fixture
def guest(host):
    guest, started = start_guest(host, Worker, (), "guest[3]")
    started.result(LONG)
    yield as_handle(guest, guest.name)
    end_guest(guest).result(LONG)


def tell(worker, key):
    """Give who is asked, and what a guest of the same process is."""
    return worker.get_calls(), guest_here(key).get_calls()


def test_a_guest_lives_in_the_process_of_its_host(host, guest):
    assert guest.call(Worker.get_pid).result(LONG) == host.call(Worker.get_pid).result(LONG)
    assert guest.call(Worker.echo, 1, and_more=host.call(Worker.echo, 2)).result(LONG) == (1, 2)
    # It is an object of its own, which the host can reach without a message.
    assert guest.call(Worker.get_calls).result(LONG) == ["echo"]
    host_calls, guest_calls = host.run(tell, guest.target.key).result(LONG)
    assert "echo" in host_calls
    assert guest_calls == ["echo"]
    assert guest.run(tell, guest.target.key).result(LONG) == (["echo"], ["echo"])


def test_a_guest_tells_who_and_where(host, guest):
    info, there = guest.info(), host.info()
    assert (info.name, info.node, info.remote) == ("guest[3]", there.node, there.remote)


def test_calls_of_host_and_guest_run_in_one_order(host, guest):
    calls = [worker.call(Worker.log, i) for i, worker in enumerate([host, guest] * 5)]
    gather(calls, LONG)
    threads = {thread for worker in (host, guest) for thread, _ in worker.call(Worker.get_log).result(LONG)}
    assert len(threads) == 1
    assert [value for _, value in guest.call(Worker.get_log).result(LONG)] == [1, 3, 5, 7, 9]


def test_a_failure_of_a_guest_names_the_guest(host, guest):
    for failing in (guest.call(Worker.fail), host.call(Worker.echo, guest.call(Worker.fail))):
        with pytest.raises(WorkerError, match="the motor is off") as caught:
            failing.result(LONG)
        assert (caught.value.worker, caught.value.method) == ("guest[3]", "fail")
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_guest_that_cannot_be_built_says_so(host):
    _, started = start_guest(host, Worker, (True,), "guest[4]")
    with pytest.raises(WorkerError, match="no such robot") as caught:
        started.result(LONG)
    assert (caught.value.worker, caught.value.method) == ("guest[4]", "__init__")


def test_a_guest_that_is_gone_is_an_error(host):
    guest, _ = start_guest(host, Worker, (), "guest[5]")
    end_guest(guest).result(LONG)
    with pytest.raises(WorkerError, match="its group was closed") as caught:
        as_handle(guest, "guest[5]").call(Worker.get_pid).result(LONG)
    assert isinstance(caught.value.__cause__, ProtocolError)


def test_a_late_guest_is_named(host, guest):
    if not host.info().remote:
        pytest.skip("a local call is over when it returns")
    with pytest.raises(CallTimeout, match=r"from 1 calls: guest\[3\]\.sleep"):
        guest.call(Worker.sleep, 1).result(0.05)
