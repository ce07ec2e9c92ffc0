"""Workers start where they are told, and none is left."""

import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from rlightning.config import PolicyConfig
from rlightning.errors import ConfigError, PlacementError, Problem, WorkerError
from rlightning.policy.base_policy import PolicyRole
from rlightning.runtime import as_handle, ray_backend
from rlightning.runtime.spawn import WorkerPool, WorkerSetup, WorkerSpec
from tests.policy.policies import Bare
from tests.runtime.workers import Worker


@pytest.mark.slow
def test_local_workers_are_objects_of_this_process_and_start_no_ray():
    code = """
        import sys
        from rlightning.runtime import as_handle
        from rlightning.runtime.spawn import WorkerPool, WorkerSpec
        from tests.runtime.workers import Worker

        pool = WorkerPool()
        workers = pool.start([WorkerSpec(Worker, (), f"worker[{i}]") for i in range(2)])
        assert [type(worker) for worker in workers] == [Worker, Worker]
        assert as_handle(workers[0]).call(Worker.echo, 1).result() == 1
        pool.stop()
        pool.stop()
        print("ray" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=90
    )
    assert done.stdout.strip() == "False"


class Wrong:
    """Cannot be built as it is configured."""

    def __init__(self):
        raise ConfigError(Problem("env.name", "there is no CartPol-v1", suggestion="CartPole-v1"))


class Broken(Bare):
    """A policy whose constructor fails before that of the framework."""

    def __init__(self, config, role_type):
        raise ValueError("no such gripper")


@pytest.mark.parametrize("remote", [False, pytest.param(True, marks=pytest.mark.ray)])
def test_a_constructor_that_fails_raises_the_same_here_and_there(remote, request):
    if remote:
        request.getfixturevalue("ray_cluster")
    pool = WorkerPool()
    try:
        for cls, args, kind, text in (
            (Worker, (True,), ValueError, "no such robot"),
            (Wrong, (), ConfigError, "env.name: there is no CartPol-v1; did you mean 'CartPole-v1'?"),
            (Broken, (PolicyConfig(), PolicyRole.EVAL), ValueError, "no such gripper"),
        ):
            with pytest.raises(kind) as caught:
                pool.start([WorkerSpec(cls, args, "worker[0]", remote, num_cpus=0.01)])
            assert type(caught.value) is kind
            assert str(caught.value) == text
            if remote:
                assert "tests/runtime" in caught.value.__notes__[0]
    finally:
        pool.stop()


def test_every_process_gets_the_same_number_of_torch_threads():
    threads = torch.get_num_threads()
    try:
        WorkerSetup(torch_threads=2).apply("env[0]")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def _call_until_it_fails(worker):
    """Call a worker that was told to end; Ray ends its process a moment later, and a call may get in before."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        as_handle(worker).call(Worker.echo, 1).result(60)


@pytest.mark.ray
def test_local_and_remote_workers_start_together_in_order(ray_cluster):
    pool = WorkerPool()
    specs = [WorkerSpec(Worker, (), f"worker[{i}]", remote=i == 1, num_cpus=0.01) for i in range(3)]
    workers = pool.start(specs)
    pids = [as_handle(worker).call(Worker.get_pid).result(60) for worker in workers]
    assert [pid == os.getpid() for pid in pids] == [True, False, True]
    pool.stop()
    pool.stop()
    with pytest.raises(WorkerError):
        _call_until_it_fails(workers[1])


@pytest.mark.parametrize("listens", [True, False])
def test_a_cluster_that_lets_nobody_in_is_not_taken_for_none(monkeypatch, listens):
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        if not listens:
            cluster.close()

        def refuse(**_):
            raise ConnectionError(f"Failed to connect to Ray cluster at {address}")

        monkeypatch.setattr(ray_backend.ray, "init", refuse)
        with pytest.raises(PlacementError) as caught:
            ray_backend._start("auto", 1.0, 0.0)
    assert ("no Ray cluster answers" in str(caught.value)) is not listens
    assert ("RAY_AUTH_TOKEN" in str(caught.value)) is listens


@pytest.mark.ray
def test_workers_that_do_not_fit_in_time_are_a_placement_error(ray_cluster):
    pool = WorkerPool(start_timeout_s=2.0)
    try:
        with pytest.raises(PlacementError, match=r"env\[0\].*cluster\.start_timeout_s"):
            pool.start([WorkerSpec(Worker, (), "env[0]", remote=True, num_cpus=1000.0)])
    finally:
        pool.stop()


OWN_RAY = """
    import os, ray
    from rlightning.runtime import as_handle
    from rlightning.runtime.spawn import WorkerPool, WorkerSpec
    from tests.runtime.workers import Worker

    pool = WorkerPool()
    worker, = pool.start([WorkerSpec(Worker, (), "worker[0]", remote=True)])
    print("worker", as_handle(worker).call(Worker.get_pid).result(60), flush=True)
    if {stop}:
        pool.stop()
        print("ray", ray.is_initialized(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.exhaustive  # tests/faults/test_exit.py holds it with a driver that raises
@pytest.mark.timeout(300)
@pytest.mark.parametrize("stop", [pytest.param(True, id="stopped"), pytest.param(False, id="forgotten")])
def test_a_ray_of_its_own_ends_with_the_program_and_leaves_no_process(stop):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(OWN_RAY.format(stop=stop))],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("worker ", "ray ")))
    assert lines.get("ray", "False") == "False"
    assert _ends(int(lines["worker"]))


def _ends(pid, within_s=10.0):
    """Wait for a process of somebody else to be gone, or dead and not yet collected."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        if not state.strip() or state.strip().startswith("Z"):
            return True
        time.sleep(0.2)
    return False
