"""The store by which the ranks of groups find each other."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # it does

from rlightning.errors import CallTimeout, PeerLost

LOOPBACK = "127.0.0.1"
"""The address of this machine that no other one reaches."""
_WAITING = 2048
"""Connections that may wait at once."""
_ELSEWHERE = ("192.0.2.1", 9)
"""An address that is reserved for documentation (RFC 5737): nothing is sent to it, it only selects an interface."""


class Rendezvous:
    """A store that one rank listens with and all others connect to.

    The system chooses its port, and the store listens on it from then on: a port that is found free, let go and taken
    again later could be another program's by then. Any number of groups and generations meet in one store.

    Attributes:
        address: Of the node of the rank that listens.
        port: The port that it listens on.
    """

    def __init__(self, store: Store, address: str, port: int) -> None:
        self._store = store
        self.address, self.port = address, port

    @classmethod
    def host(cls, port: int = 0, address: str = LOOPBACK, *, timeout_s: float = 300.0) -> Rendezvous:
        """Listen on one address, and on no other one of this machine.

        Args:
            port: 0 lets the system choose, which cannot fail.
            address: Where the others reach this machine; the loopback address where all ranks are on it.
            timeout_s: Seconds that a rank waits in the store for another one.

        Raises:
            PeerLost: If the port is taken, or the address is not one of this machine.
        """
        try:
            listener = socket.create_server((address, port), backlog=_WAITING)
        except OSError as error:
            raise PeerLost(
                f"rank 0 cannot listen on {address}:{port}: {error}; port 0 lets the system choose"
            ) from error
        port = listener.getsockname()[1]
        # The store owns the socket from here on. By itself it would listen on all addresses of the machine.
        fd, timeout = listener.detach(), timedelta(seconds=timeout_s)
        return cls(TCPStore(address, port, None, True, timeout, False, master_listen_fd=fd), address, port)

    @classmethod
    def join(cls, address: str, port: int, *, rank: int, timeout_s: float = 300.0) -> Rendezvous:
        """Connect to the rank that listens.

        Raises:
            CallTimeout: If there is no answer in time.
        """
        try:
            store = TCPStore(address, port, None, False, timedelta(seconds=timeout_s), wait_for_workers=False)
        except (DistError, RuntimeError) as error:
            raise CallTimeout(
                f"rank {rank} found nobody at {address}:{port} within {timeout_s:g} s (phase rendezvous): {error}"
            ) from error
        return cls(store, address, port)

    def store(self, name: str) -> Store:
        """Return the part of the store that belongs to one group of one generation."""
        return PrefixStore(name, self._store)


def own_address() -> str:
    """Return the address by which other machines reach this one; the loopback address where there are none."""
    return address_towards(*_ELSEWHERE)


def address_towards(address: str, port: int) -> str:
    """Return the address of this node that another one is reached from; the loopback address where none is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
