"""A fast channel makes calls beside all others, to objects of this process and to processes of this machine alike."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest

from rlightning.errors import CallTimeout, WorkerDied, WorkerError
from rlightning.runtime import as_handle, gather, open_channels, wait
from rlightning.runtime.fast_channel import _PROCESS, SocketChannel, _connect, _listen
from rlightning.runtime.local import LocalHandle
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from tests.runtime.workers import Patient, Worker

LONG = 60.0
IS_LINUX = sys.platform == "linux"


class Unportable(Exception):
    """Wants other arguments than it gives."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Caller(Patient):
    """Is called by channels, by one test after the other."""

    def hold(self, value):
        value = super().hold(value)
        self.may_answer.clear()
        return value

    def release(self):
        self.may_answer.set()

    def fail_oddly(self):
        raise Unportable("this", "that")

    def give_a_lock(self):
        return threading.Lock()

    def count_lines(self):
        return sum(thread.name == "fast-channel" for thread in threading.enumerate())


@pytest.fixture(scope="module", params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def workers(request):
    """Two workers of this process, or two processes; shared by tests, since processes start slowly."""
    remote = request.param == "ray"
    if remote:
        request.getfixturevalue("ray_cluster")
    pool = WorkerPool()
    specs = [WorkerSpec(Caller, (), f"worker[{i}]", remote, num_cpus=0.01) for i in range(2)]
    yield [as_handle(worker, spec.name) for worker, spec in zip(pool.start(specs), specs, strict=True)]
    pool.stop()


def start_process(pool):
    return as_handle(pool.start([WorkerSpec(Caller, (), "worker", True, num_cpus=0.01)])[0], "worker")


@pytest.fixture(scope="module")
def process(ray_cluster):
    pool = WorkerPool()
    yield start_process(pool)
    pool.stop()


@pytest.fixture
def remote(process):
    """A process, and a channel to it."""
    (channel,) = open_channels([process], "any", LONG)
    return process, channel


def until(condition):
    """Wait for what comes soon, and give up on a broken machine only."""
    end = time.monotonic() + LONG
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_calls_by_lines_give_values_errors_and_no_value_in_time(workers):
    first, second = open_channels(workers, "any", LONG)
    assert (first.name, second.name) == ("worker[0]", "worker[1]")
    futures = [channel.call(Worker.echo, i) for i, channel in enumerate((first, second, first, second))]
    assert gather(futures, LONG) == [0, 1, 2, 3]
    assert wait(futures, 4, 0) == (futures, [])
    with pytest.raises(WorkerError, match="the motor is off") as caught:
        second.call(Worker.fail).result(LONG)
    assert (caught.value.worker, caught.value.method) == ("worker[1]", "fail")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "raise KeyError" in "".join(traceback.format_exception(caught.value))
    if not workers[1].info().remote:
        return  # an object of this process is never late: its calls have run when they return
    slow = second.call(Caller.hold, "late")
    assert not slow.done()
    with pytest.raises(CallTimeout, match=r"no answer within 0\.05 s from 1 calls: worker\[1\]\.hold"):
        gather([first.call(Worker.echo, 1), slow], 0.05)
    # One that is late holds up nobody else, and its answer is not taken for that of another call.
    assert wait([slow, first.call(Worker.echo, 2)], 1, LONG)[1] == [slow]
    after = second.call(Worker.echo, "after")
    workers[1].call(Caller.release)
    assert after.result(LONG) == "after"
    assert slow.result(LONG) == "late"


def test_a_fast_channel_is_answered_while_the_worker_is_in_another_call(remote):
    handle, channel = remote
    # The call returns when the channel was answered, which it is not by the thread that waits there.
    held = handle.call(Caller.hold, 5)
    channel.call(Caller.release).result(LONG)
    assert held.result(LONG) == 5


@pytest.mark.skipif(not IS_LINUX, reason="elsewhere there are none by a socket")
def test_processes_of_this_machine_are_called_by_a_socket_that_no_file_names(workers):
    files = set(Path("/tmp").iterdir()) | set(Path("/dev/shm").iterdir())
    channels = open_channels(workers, "any", LONG)
    is_remote = workers[0].info().remote
    assert {type(channel) for channel in channels} == {SocketChannel if is_remote else LocalHandle}
    names = {str(path) for path in (set(Path("/tmp").iterdir()) | set(Path("/dev/shm").iterdir())) - files}
    assert not [name for name in names if "rlightning" in name]
    # Nobody else can come: the kernel's list of sockets has no listener of ours.
    listening = "00010000"
    assert until(
        lambda: (
            not [
                channel
                for channel in Path("/proc/net/unix").read_text().splitlines()
                if "@rlightning-" in channel and listening in channel
            ]
        )
    )


def test_who_lives_elsewhere_or_cannot_be_reached_is_called_by_a_channel():
    here = as_handle(Worker(), "here")
    assert _listen(here.target, _PROCESS) == ("", "")  # this very process
    assert _connect(here, "\0rlightning-nobody", "node") is None  # another machine, or another network


def test_an_error_that_cannot_travel_comes_as_its_text(remote):
    _, channel = remote
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(Unportable("this", "that")))
    with pytest.raises(WorkerError, match="Unportable: this and that"):
        channel.call(Caller.fail_oddly).result(LONG)
    assert channel.call(Worker.echo, 1).result(LONG) == 1


def test_a_value_that_cannot_travel_breaks_the_channel_and_not_the_worker(remote):
    handle, channel = remote
    for _ in range(2):
        with pytest.raises(WorkerError, match="the channel to this process broke although it lives"):
            channel.call(Caller.give_a_lock).result(LONG)
    assert handle.call(Worker.echo, 1).result(LONG) == 1


def test_a_process_that_dies_fails_the_calls_in_flight_and_all_later_ones(ray_cluster):
    pool = WorkerPool()
    handle = start_process(pool)
    (channel,) = open_channels([handle], "any", LONG)
    pid = handle.call(Worker.get_pid).result(LONG)
    held = [channel.call(Caller.hold, 1), channel.call(Worker.echo, 2)]
    os.kill(pid, signal.SIGKILL)
    assert wait(held, 2, LONG) == (held, [])
    for future in [*held, channel.call(Worker.echo, 3)]:
        with pytest.raises(WorkerDied, match="the process of the worker is gone") as caught:
            future.result(LONG)
        assert caught.value.worker == "worker"
    pool.stop()


def test_a_fast_channel_ends_with_its_last_user(remote):
    handle, channel = remote
    others = open_channels([handle, handle], "any", LONG)
    assert [one.call(Worker.echo, 1).result(LONG) for one in (channel, *others)] == [1, 1, 1]
    assert until(lambda: handle.call(Caller.count_lines).result(LONG) == 3)  # those of other tests end meanwhile
    del others
    assert until(lambda: handle.call(Caller.count_lines).result(LONG) == 1)
    assert channel.call(Worker.echo, 2).result(LONG) == 2


@pytest.mark.skipif(not IS_LINUX or os.getuid() != 0, reason="only root can become somebody else")
def test_a_process_of_another_user_is_not_listened_to():
    address, _ = _listen(Worker(), "another")
    stranger = (
        "import os, socket, sys; os.setuid(65534); plug = socket.socket(socket.AF_UNIX);"
        "plug.connect(sys.stdin.read()); print(plug.recv(1))"
    )
    told = subprocess.run(
        [sys.executable, "-c", stranger], input=address, capture_output=True, text=True, check=True, timeout=LONG
    )
    assert told.stdout == "b''\n"
    channel = _connect(as_handle(Worker(), "here"), address, "node")
    assert channel.call(Worker.echo, 1).result(LONG) == 1
