"""A communication group as one of its ranks sees it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rlightning.distributed.rendezvous import Rendezvous, address_towards
from rlightning.errors import CallTimeout, ConfigError, PeerLost, ProtocolError


class ParallelMode(StrEnum):
    """The purpose of a group."""

    GLOBAL = "global"
    """The default group: all ranks."""
    INTRA_NODE = "intra_node"
    """The ranks of one node."""
    WEIGHT_TRANSFER = "weight_transfer"
    """A sender of weights, rank 0, and its receivers."""
    TRAIN_DATA_PARALLEL = "train_data_parallel"
    """The train policies."""


class Group:
    """Ranks that make collective calls, in the same order on all of them.

    It is built on a backend of torch and not on torch's default group. So several ranks may live in one process, and
    groups can be formed again for other members, as a new generation. A group of one rank has no backend.

    Attributes:
        name: Names the group in messages.
        mode: Its purpose.
        ranks: The global ranks of its members.
        rank: The rank of this member within the group.
        size: Number of members.
        generation: Which formation of the groups it belongs to.
        timeout_s: Seconds that one call waits for the others.
    """

    def __init__(
        self,
        mode: ParallelMode,
        ranks: Sequence[int],
        rank: int,
        *,
        generation: int = 0,
        timeout_s: float = 300.0,
        device: str = "cpu",
    ) -> None:
        self.mode, self.ranks, self.rank, self.size = mode, tuple(ranks), rank, len(ranks)
        self.generation, self.timeout_s = generation, timeout_s
        self.name = f"{mode.value}[{','.join(map(str, ranks))}]"
        self._device = device
        self._backend: Any = None
        self._closed = ""

    @classmethod
    def form(
        cls,
        rendezvous: Rendezvous,
        mode: ParallelMode,
        ranks: Sequence[int],
        own_rank: int,
        *,
        backend: str = "gloo",
        generation: int = 0,
        timeout_s: float = 300.0,
        device: str = "cpu",
    ) -> Group:
        """Form a group with the other members; returns when all are there.

        Args:
            rendezvous: The store that all members use.
            mode: Its purpose.
            ranks: Global ranks of the members, the same for each of them.
            own_rank: Global rank of this member.
            backend: "gloo" or "nccl".
            generation: Groups of different generations do not meet.
            timeout_s: Seconds to wait for the others, here and in every call.
            device: Device of the tensors of calls without an argument, such as ``barrier``.

        Raises:
            CallTimeout: If a member does not come.
            ConfigError: If there is no such backend.
            ProtocolError: If this member is not among the ranks.
        """
        if own_rank not in ranks:
            raise ProtocolError(f"rank {own_rank} is no member of a {mode.value} group of the ranks {list(ranks)}")
        group = cls(mode, ranks, list(ranks).index(own_rank), generation=generation, timeout_s=timeout_s, device=device)
        if group.size > 1:
            if backend not in _BACKENDS:
                raise ConfigError(f"there is no backend {backend!r} for groups; choose {' or '.join(_BACKENDS)}")
            make, store = _BACKENDS[backend], rendezvous.store(f"{generation}/{group.name}")
            with _named_errors(group, "form"):
                group._backend = make(store, group.rank, group.size, timedelta(seconds=timeout_s), rendezvous)
        _open[mode] = group
        return group

    def all_reduce_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all ranks; bit for bit the same on each.

        Args:
            tensor: Contiguous, of the same shape and dtype on all ranks.

        Returns:
            The tensor.

        Raises:
            CallTimeout: If a rank does not make the call within ``timeout_s``.
            PeerLost: If a rank is gone.
            ProtocolError: If the group is closed.
        """
        self._run("all_reduce", lambda backend: backend.allreduce([tensor]))
        return tensor

    def broadcast_(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Replace a tensor by that of one rank; errors as in ``all_reduce_``.

        Args:
            tensor: Contiguous, of the same shape and dtype on all ranks.
            root: Whose tensor it is, as a rank within the group.
        """
        options = dist.BroadcastOptions()
        options.rootRank = root
        # Bytes, since not all backends know all dtypes.
        self._run("broadcast", lambda backend: backend.broadcast([_bytes(tensor)], options))
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, in the order of the ranks; errors as in ``all_reduce_``.

        Args:
            tensor: [L, ...]; L may differ from rank to rank, the rest and the dtype may not.

        Returns:
            One tensor of each rank, [L_rank, ...].
        """
        if self._backend is None and not self._closed:
            return [tensor]
        tensor = tensor.contiguous()
        lengths = [torch.zeros(1, dtype=torch.int64, device=tensor.device) for _ in self.ranks]
        own = torch.tensor([len(tensor)], dtype=torch.int64, device=tensor.device)
        self._run("all_gather", lambda backend: backend.allgather([lengths], [own]))
        counts = [int(length) for length in lengths]
        longest = max(counts)
        padded = tensor if len(tensor) == longest else tensor.new_zeros((longest, *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        results = [torch.empty_like(padded) for _ in self.ranks]
        if padded.numel():
            views = [_bytes(result) for result in results]
            self._run("all_gather", lambda backend: backend.allgather([views], [_bytes(padded)]))
        return [result[:count] for result, count in zip(results, counts, strict=True)]

    def barrier(self) -> None:
        """Wait until all ranks are here; errors as in ``all_reduce_``."""
        signal = torch.zeros(1, device=self._device)
        self._run("barrier", lambda backend: backend.allreduce([signal]))
        signal.item()  # waits for the device, where there is one

    def close(self, reason: str = "it was closed") -> None:
        """Leave the group; calls of other ranks that wait for this one fail at once. May be called twice.

        Args:
            reason: Part of the error that later calls of this group raise.
        """
        if self.size > 1 and not self._closed:
            self._closed = reason
            # The connections end with the last reference, and only that ends the calls that wait.
            self._backend = None

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return bool(self._closed)

    def _run(self, phase: str, start: Callable[[Any], Any]) -> None:
        backend = self._backend
        if backend is None:
            if self._closed:
                raise ProtocolError(
                    f"rank {self.rank} has left the group {self.name} of generation {self.generation} ({self._closed}):"
                    f" call PolicyGroup.init_comm_group to form the groups again"
                )
            return
        with _named_errors(self, phase):
            start(backend).wait()


@contextmanager
def _named_errors(group: Group, phase: str) -> Iterator[None]:
    """Turn what a backend raises into an error that names rank, group, generation and phase."""
    start = time.monotonic()
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        waited = time.monotonic() - start
        where = (
            f"rank {group.rank} of {group.size} in the group {group.name} of generation {group.generation}, "
            f"phase {phase}"
        )
        # The text of a backend says in many ways that it waited too long, and not all are right.
        if waited >= 0.95 * group.timeout_s:
            raise CallTimeout(f"{where}: the other ranks did not come within {group.timeout_s:g} s") from error
        raise PeerLost(
            f"{where}: a rank is gone, or made another call than this one, after {waited:.1f} s: {error}"
        ) from error


def _gloo(store: Any, rank: int, size: int, timeout: timedelta, rendezvous: Rendezvous) -> Any:
    options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # there, but not in the stubs
    # The interface by which the others are reached: what the host name stands for may be the loopback address.
    hostname = address_towards(rendezvous.address, rendezvous.port)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=hostname)]
    options._timeout = timeout
    options._threads = 2
    return dist.ProcessGroupGloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int, timeout: timedelta, rendezvous: Rendezvous) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


_BACKENDS: dict[str, Callable[..., Any]] = {"gloo": _gloo, "nccl": _nccl}

_open: weakref.WeakValueDictionary[ParallelMode, Group] = weakref.WeakValueDictionary()
"""The group of each kind that was formed last in this process."""

SOLO = Group(ParallelMode.GLOBAL, (0,), 0)
"""A group of one: every call returns at once."""


def open_group(mode: ParallelMode) -> Group | None:
    """Find the group of a kind that was formed last in this process and is not closed."""
    group = _open.get(mode)
    return None if group is None or group.closed else group


def _bytes(tensor: Tensor) -> Tensor:
    """View a contiguous tensor as bytes."""
    return tensor.detach().view(-1).view(torch.uint8)
