"""An in-process worker answers as any worker does, from the process of its host."""

import pytest

from rlightning.errors import CallTimeout, ProtocolError, WorkerError
from rlightning.runtime import as_handle, gather
from rlightning.runtime.in_process import end_in_process, in_process_worker, start_in_process
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
def inner(host):
    inner, started = start_in_process(host, Worker, (), "inner[3]")
    started.result(LONG)
    yield as_handle(inner, inner.name)
    end_in_process(inner).result(LONG)


def tell(worker, key):
    """Give who is asked, and what an in-process worker of the same process is."""
    return worker.get_calls(), in_process_worker(key).get_calls()


def test_an_in_process_worker_lives_in_the_process_of_its_host(host, inner):
    assert inner.call(Worker.get_pid).result(LONG) == host.call(Worker.get_pid).result(LONG)
    assert inner.call(Worker.echo, 1, and_more=host.call(Worker.echo, 2)).result(LONG) == (1, 2)
    # It is an object of its own, which the host can reach without a message.
    assert inner.call(Worker.get_calls).result(LONG) == ["echo"]
    host_calls, inner_calls = host.run(tell, inner.target.key).result(LONG)
    assert "echo" in host_calls
    assert inner_calls == ["echo"]
    assert inner.run(tell, inner.target.key).result(LONG) == (["echo"], ["echo"])


def test_an_in_process_worker_tells_who_and_where(host, inner):
    info, there = inner.info(), host.info()
    assert (info.name, info.node, info.remote) == ("inner[3]", there.node, there.remote)


def test_calls_of_host_and_in_process_worker_run_in_one_order(host, inner):
    calls = [worker.call(Worker.log, i) for i, worker in enumerate([host, inner] * 5)]
    gather(calls, LONG)
    threads = {thread for worker in (host, inner) for thread, _ in worker.call(Worker.get_log).result(LONG)}
    assert len(threads) == 1
    assert [value for _, value in inner.call(Worker.get_log).result(LONG)] == [1, 3, 5, 7, 9]


def test_a_failure_of_an_in_process_worker_names_it(host, inner):
    for failing in (inner.call(Worker.fail), host.call(Worker.echo, inner.call(Worker.fail))):
        with pytest.raises(WorkerError, match="the motor is off") as caught:
            failing.result(LONG)
        assert (caught.value.worker, caught.value.method) == ("inner[3]", "fail")
        assert isinstance(caught.value.__cause__, KeyError)


def test_an_in_process_worker_that_cannot_be_built_says_so(host):
    _, started = start_in_process(host, Worker, (True,), "inner[4]")
    with pytest.raises(WorkerError, match="no such robot") as caught:
        started.result(LONG)
    assert (caught.value.worker, caught.value.method) == ("inner[4]", "__init__")


def test_an_in_process_worker_that_is_gone_is_an_error(host):
    inner, _ = start_in_process(host, Worker, (), "inner[5]")
    end_in_process(inner).result(LONG)
    with pytest.raises(WorkerError, match="its group was closed") as caught:
        as_handle(inner, "inner[5]").call(Worker.get_pid).result(LONG)
    assert isinstance(caught.value.__cause__, ProtocolError)


def test_a_late_in_process_worker_is_named(host, inner):
    if not host.info().remote:
        pytest.skip("a local call is over when it returns")
    with pytest.raises(CallTimeout, match=r"from 1 calls: inner\[3\]\.sleep"):
        inner.call(Worker.sleep, 1).result(0.05)
