"""A worker that is gone, or must go, gets a successor; how its process ended is told where the kernel tells it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlightning.errors import WorkerDied, WorkerError
from rlightning.runtime import as_handle
from rlightning.runtime.exit_code import ProcessWatch, own_process
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Worker

NO_PLACES = pytest.mark.skipif(sys.platform != "linux", reason="processes are seen by their descriptors on Linux")


def kernel_tells():
    """Whether this kernel tells the exit code of a process to others than its parent."""
    watch, _ = watched("raise SystemExit(3)")
    return watch is not None and watch.exit_code(10) is not None


def watched(code):
    child = subprocess.Popen([sys.executable, "-c", code])
    watch = ProcessWatch.of((own_process()[0], child.pid))
    child.wait()
    return watch, child


@NO_PLACES
@pytest.mark.parametrize(("code", "wanted"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)])
def test_the_exit_code_of_a_process_that_is_gone_is_known(code, wanted):
    if not kernel_tells():
        pytest.skip("this kernel does not tell exit codes")
    # The parent has asked already, so that no other process could.
    watch, child = watched(code)
    assert child.returncode == wanted
    assert watch.exit_code() == wanted
    watch.close()


@NO_PLACES
def test_a_process_that_lives_has_no_exit_code_and_can_be_ended_even_if_it_is_stopped():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    watch = ProcessWatch.of((own_process()[0], child.pid))
    assert watch.exit_code(0.0) is None
    os.kill(child.pid, signal.SIGSTOP)
    watch.kill()
    assert watch.is_gone(60)
    assert child.wait() == -signal.SIGKILL
    watch.close()


def test_a_process_of_another_machine_is_not_taken_for_one_of_this():
    assert ProcessWatch.of(("another kernel", os.getpid())) is None
    assert ProcessWatch.of(("", os.getpid())) is None


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
    told = " with exit code 3" if sys.platform == "linux" and kernel_tells() else ""
    with pytest.raises(WorkerDied, match=f"the process of the worker is gone{told}: ") as caught:
        as_handle(workers[0], "worker[0]").call(Worker.exit).result(60)
    assert caught.value.exit_code == (3 if told else None)
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
