"""A worker for the tests of this room, importable by worker processes."""

from __future__ import annotations

import os
import threading
import time


class Unlike(Exception):
    """Is not made of its ``args``, so that pickle cannot make it again."""

    def __init__(self, joint, angle):
        super().__init__(f"the {joint} is at {angle}\nof at most 2.0")


class Locked(Unlike):
    """Cannot be pickled at all."""

    def __init__(self, joint, angle):
        super().__init__(joint, angle)
        self.lock = threading.Lock()


class Worker:
    """Does what it is told."""

    def __init__(self, is_broken=False):
        if is_broken:
            raise ValueError("no such robot")
        self.calls = []
        self.logged = []
        self.barrier = threading.Barrier(2)

    def echo(self, value, and_more=None):
        self.calls.append("echo")
        return value if and_more is None else (value, and_more)

    def fail(self, *values):
        raise KeyError("the motor is off")

    def fail_by(self, kind):
        raise kind("knee", 3.0)

    def pair(self, *values):
        return [list(values), "second"]

    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds

    def exit(self):
        os._exit(3)

    def meet(self, value):
        """Return when another call has come, too: a meeting needs two calls at a time."""
        self.barrier.wait(60)
        return value

    def log(self, value):
        self.logged.append((threading.get_ident(), value))

    def get_log(self):
        return self.logged

    def get_pid(self):
        return os.getpid()

    def get_gpus(self):
        import ray

        return [int(gpu) for gpu in ray.get_gpu_ids()]

    def get_calls(self):
        return self.calls


class Patient(Worker):
    """Answers when it is told to."""

    def __init__(self):
        super().__init__()
        self.may_answer = threading.Event()

    def hold(self, value):
        assert self.may_answer.wait(60)
        return value


class Parcel:
    """Counts in this process how often it was packed."""

    packed = 0

    def __init__(self, num_bytes):
        self.num_bytes = num_bytes

    def __reduce__(self):
        type(self).packed += 1
        return Parcel, (self.num_bytes,)
