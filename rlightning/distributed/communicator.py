"""The groups that one rank belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from rlightning.distributed.groups import SOLO, Group, ParallelMode
from rlightning.distributed.rendezvous import LOOPBACK, Rendezvous, own_address
from rlightning.errors import ProtocolError


class Communicator:
    """Holds the rank of a member and its groups, generation after generation.

    Attributes:
        rank: Among all members; 0 before ``enter``.
        size: Number of members; 1 before ``enter``.
        is_on_one_node: Whether all members are on the node of this one, so that loopback is enough.
    """

    def __init__(self) -> None:
        self.is_on_one_node = False
        self.rank, self.size = 0, 1
        self._rendezvous: Rendezvous | None = None
        self._offered: Rendezvous | None = None
        self._groups: dict[ParallelMode, list[Group]] = {}
        self._owns_default = False
        self._generation, self._timeout_s, self._device = 0, 300.0, "cpu"

    def offer(self) -> tuple[str, int]:
        """Listen for the others; returns address and port for them. Called on the rank that becomes 0."""
        self._offered = Rendezvous.host(address=LOOPBACK if self.is_on_one_node else own_address())
        return self._offered.address, self._offered.port

    def enter(
        self,
        rank: int,
        size: int,
        address: str,
        port: int,
        backend: str,
        *,
        generation: int = 0,
        timeout_s: float = 300.0,
        device: str = "cpu",
    ) -> None:
        """Form the group of all members; those of an earlier generation are left first.

        Args:
            rank: Among all members.
            size: Number of members.
            address: Address that rank 0 listens at, or will: what ``offer`` returned.
            port: Likewise.
            backend: That of the group of all.
            generation: Number of this formation.
            timeout_s: Seconds that each call waits for the others.
            device: Device of the tensors.
        """
        self.close(f"generation {generation} took its place")
        offered, self._offered = self._offered, None
        self.rank, self.size = rank, size
        self._generation, self._timeout_s, self._device = generation, timeout_s, device
        if offered is not None and offered.port == port:
            self._rendezvous = offered
        elif rank == 0:
            self._rendezvous = Rendezvous.host(port, address, timeout_s=timeout_s)
        else:
            self._rendezvous = Rendezvous.join(address, port, rank=rank, timeout_s=timeout_s)
        self.form(range(size), ParallelMode.GLOBAL, backend)

    def form(self, ranks: Sequence[int], mode: ParallelMode, backend: str, *, as_default: bool = False) -> None:
        """Form a group with others of the same generation; nothing to do where this member is not among the ranks.

        Args:
            ranks: Ranks of the members.
            mode: Its purpose.
            backend: "gloo" or "nccl".
            as_default: Make it torch's default group as well, for code that needs one; only where this is the only
                rank of the process. A default group that is there already is left alone.

        Raises:
            ProtocolError: Before ``enter``.
        """
        if self.rank not in ranks:
            return
        if self._rendezvous is None:
            raise ProtocolError("call init_distributed_env before init_single_comm_group")
        group = Group.form(
            self._rendezvous,
            mode,
            ranks,
            self.rank,
            backend=backend,
            generation=self._generation,
            timeout_s=self._timeout_s,
            device=self._device,
        )
        self._groups.setdefault(mode, []).append(group)
        if as_default and not dist.is_initialized():
            store = self._rendezvous.store(f"{self._generation}/default")
            timeout = timedelta(seconds=self._timeout_s)
            dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.size, timeout=timeout)
            self._owns_default = True

    def groups(self, mode: ParallelMode) -> list[Group]:
        """List the groups of a kind in the order in which they were formed."""
        return list(self._groups.get(mode, ()))

    def group(self, mode: ParallelMode) -> Group:
        """Return the first group of a kind; a group of one where there is none."""
        groups = self._groups.get(mode)
        return groups[0] if groups else SOLO

    def close(self, reason: str = "the groups were closed") -> None:
        """Leave all groups; may be called twice."""
        for group in (group for groups in self._groups.values() for group in groups):
            group.close(reason)
        if self._owns_default:
            dist.destroy_process_group()
            self._owns_default = False
        self._groups.clear()
        self._rendezvous = None
        self.rank, self.size = 0, 1
