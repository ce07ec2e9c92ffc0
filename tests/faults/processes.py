"""Programs of their own, and what is left of them."""

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

_MARK = "RLIGHTNING_TEST_MARK"


class Program:
    """A Python program in a session of its own; ``descendants`` finds all that came from it, wherever they went."""

    def __init__(self, arguments, folder):
        self.mark, self.folder = uuid.uuid4().hex, folder
        self._others = set()  # looked at before: the mark is inherited, or never there
        paths = os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
        with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": paths, _MARK: self.mark},
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                # What runs in the background of a script inherits that interrupts are ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def output(self):
        return (self.folder / "stdout").read_text()

    @property
    def errors(self):
        return (self.folder / "stderr").read_text()

    def wait_for(self, happened, timeout_s=180.0):
        """Wait until something happened, or the program is over."""
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert self.process.poll() is None, f"it ended before: {self.errors}"
            assert time.monotonic() < deadline, f"it did not happen within {timeout_s} s: {self.output}{self.errors}"
            time.sleep(0.1)

    def end(self, timeout_s):
        """Wait for the end; gives the exit code and the seconds that it took."""
        start = time.monotonic()
        return self.process.wait(timeout_s), time.monotonic() - start

    def descendants(self):
        """List the command lines of the living processes that inherited the mark."""
        found = []
        for folder in set(Path("/proc").glob("[0-9]*")) - self._others:
            try:
                environment = (folder / "environ").read_bytes()
                if environment and self.mark.encode() not in environment:
                    self._others.add(folder)
                elif environment and "Z" not in _status(folder):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def nothing_left(self, within_s=10.0):
        deadline = time.monotonic() + within_s
        while self.descendants() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.descendants() == []


@contextmanager
def program(arguments, folder):
    """Run a program; whatever happens, it is over at the end."""
    started = Program(arguments, folder)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def _status(folder):
    return (folder / "stat").read_text().rpartition(")")[2].split()[0]
