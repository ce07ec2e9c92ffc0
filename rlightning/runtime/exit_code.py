"""The exit code of a process that is not a child of this one, from the kernel.

Ray starts the processes of workers and does not tell how they ended. Linux does: whoever held a file descriptor of a
process while it lived may ask afterwards (``PIDFD_GET_INFO``, Linux 6.15). Elsewhere exit codes are not known.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from contextlib import suppress
from pathlib import Path

_INFO_BYTES, _EXIT_OFFSET = 64, 60  # struct pidfd_info of linux/pidfd.h, first version
_WANT_EXIT = 1 << 3
_GET_INFO = (3 << 30) | (_INFO_BYTES << 16) | (0xFF << 8) | 11  # _IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)


def own_process() -> tuple[str, int]:
    """Say which kernel and which space of process ids this process lives in, and its id there."""
    space = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return space, os.getpid()


class ProcessWatch:
    """Knows a process, also when it is gone and its id belongs to another one.

    Args:
        descriptor: Of ``os.pidfd_open``; closed by ``close``.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def of(cls, process: tuple[str, int]) -> ProcessWatch | None:
        """Watch the process that ``own_process`` gave there; None where it cannot be seen from here."""
        space, pid = process
        if not space or space != own_process()[0] or not hasattr(os, "pidfd_open"):
            return None
        try:
            return cls(os.pidfd_open(pid))
        except OSError:
            return None

    def is_gone(self, within_s: float = 0.0) -> bool:
        """Wait until the process has ended; tells whether it has."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(1000.0 * within_s))

    def kill(self) -> None:
        """End the process, also one that is stopped or never lets go of the interpreter."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def exit_code(self, within_s: float = 1.0) -> int | None:
        """Give the exit code, or minus the signal that ended it; None where it lives on or the kernel does not say."""
        if not self.is_gone(within_s):
            return None
        until = time.monotonic() + within_s
        while True:
            status = _status(self._descriptor)
            if status is not None or time.monotonic() > until:
                return None if status is None else os.waitstatus_to_exitcode(status)
            time.sleep(0.01)  # its parent has not taken note of the end yet

    def close(self) -> None:
        """Forget the process."""
        os.close(self._descriptor)


def _status(descriptor: int) -> int | None:
    import fcntl  # there is none on Windows

    info = bytearray(_INFO_BYTES)
    struct.pack_into("Q", info, 0, _WANT_EXIT)
    try:
        fcntl.ioctl(descriptor, _GET_INFO, info)
    except OSError:
        return None
    (known,) = struct.unpack_from("Q", info, 0)
    (status,) = struct.unpack_from("i", info, _EXIT_OFFSET)
    return int(status) if known & _WANT_EXIT else None
