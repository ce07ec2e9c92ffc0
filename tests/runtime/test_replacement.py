"""A worker that is gone, or must go, is replaced."""

import os
import signal
import time
from pathlib import Path

import pytest

from rlightning.errors import WorkerDied, WorkerError
from rlightning.runtime import as_handle
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Worker


def test_a_worker_of_this_process_is_replaced_by_a_new_object():
    pool = WorkerPool()
    spec = WorkerSpec(Worker, (), "worker[0]")
    (old,) = pool.start([spec])
    assert type(pool.replace(old, spec)) is Worker
    assert pool.replace(old, spec) is not old


def test_an_in_process_worker_is_replaced_in_the_process_of_its_host():
    pool = WorkerPool()
    host, spec = WorkerSpec(Worker, (), "worker[0]"), WorkerSpec(Worker, (), "worker[1]", host="worker[0]")
    _, inner = pool.start([host, spec])
    as_handle(inner).call(Worker.echo, 1).result()
    assert pool.replace(inner, spec) is inner
    assert as_handle(inner).call(Worker.get_calls).result() == []


@pytest.mark.ray
@pytest.mark.slow
def test_processes_that_died_or_hang_are_replaced_and_end_for_certain(ray_cluster):
    pool = WorkerPool()
    specs = [WorkerSpec(Worker, (), f"worker[{i}]", remote=True, num_cpus=0.01) for i in range(2)]
    workers = pool.start(specs)
    pids = [as_handle(worker).call(Worker.get_pid).result(60) for worker in workers]
    with pytest.raises(WorkerDied, match="the process of the worker is gone: ") as caught:
        as_handle(workers[0], "worker[0]").call(Worker.exit).result(60)
    assert caught.value.node not in ("local", "ray")
    as_handle(workers[1]).call(Worker.sleep, 600)
    os.kill(pids[1], signal.SIGSTOP)
    successors = [pool.replace(worker, spec) for worker, spec in zip(workers, specs, strict=True)]
    assert not any(_lives(pid) for pid in pids)
    found = [as_handle(worker).call(Worker.get_pid).result(60) for worker in successors]
    assert not {*found} & {*pids}
    with pytest.raises(WorkerError):
        as_handle(workers[1]).call(Worker.echo, 1).result(60)
    pool.stop()
    assert _soon(lambda: not any(_lives(pid) for pid in found))


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _soon(happened, within_s=60.0):
    until = time.monotonic() + within_s
    while not happened() and time.monotonic() < until:
        time.sleep(0.05)
    return happened()
