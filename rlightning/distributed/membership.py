"""The ranks of processes and the groups that they form: pure decisions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rlightning.distributed.groups import ParallelMode


@dataclass(frozen=True, slots=True)
class Member:
    """A process, or an object in this one, before it has a rank.

    Attributes:
        key: Identifies it for the caller; hashable.
        node: Id of its node.
        devices: GPUs that it may use, in the numbering of the node; empty on the CPU.
        trains: Whether it is a train policy.
    """

    key: Any
    node: str
    devices: tuple[int, ...] = ()
    trains: bool = False


@dataclass(frozen=True, slots=True)
class Rank:
    """The ranks of a member.

    Attributes:
        member: The member.
        rank, local_rank: Among all, and among those of its node.
        local_size: Members on its node.
    """

    member: Member
    rank: int
    local_rank: int
    local_size: int


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group to form.

    Attributes:
        mode: Its purpose.
        ranks: Global ranks; the order is that of the ranks within the group.
        backend: "nccl" or "gloo".
    """

    mode: ParallelMode
    ranks: tuple[int, ...]
    backend: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """All ranks and all groups.

    Attributes:
        members: By rank; all connect to the node of the first one.
        backend: That of the group of all.
        groups: In the order in which they are formed.
    """

    members: tuple[Rank, ...]
    backend: str
    groups: tuple[PlannedGroup, ...]


def plan_groups(
    members: Sequence[Member],
    transfers: Iterable[tuple[Hashable, Sequence[Hashable]]] = (),
    backend: str = "nccl",
) -> GroupPlan:
    """Rank members by node and device, and group them.

    Nodes come in the order in which they are first named; on a node, members come by their first device, those of
    equal devices in the order given. So train policies that are given first come first on their node.

    Args:
        members: The processes and objects that get ranks.
        transfers: A sender of weights and its receivers, by key, for each group that weights travel in; a sender may
            have several.
        backend: The wish; "nccl" becomes "gloo" where members have no device of their own each.

    Returns:
        The plan. Groups: one per node, one per transfer (the sender is rank 0 in it), and that of the train policies
        in the order given.

    >>> plan = plan_groups([Member("a", "n0", (1,), True), Member("b", "n0", (0,), True), Member("c", "n1")])
    >>> [(each.member.key, each.rank, each.local_rank) for each in plan.members]
    [('b', 0, 0), ('a', 1, 1), ('c', 2, 0)]
    """
    nodes = {node: index for index, node in enumerate(dict.fromkeys(member.node for member in members))}
    ordered = sorted(members, key=lambda member: (nodes[member.node], member.devices))
    ranked: list[Rank] = []
    wanted = []
    for _, held in groupby(ordered, key=lambda member: member.node):
        own, first = list(held), len(ranked)
        ranked += [Rank(member, first + index, index, len(own)) for index, member in enumerate(own)]
        wanted.append((ParallelMode.INTRA_NODE, tuple(range(first, len(ranked)))))
    ranks = {each.member.key: each.rank for each in ranked}
    for sender, receivers in transfers:
        wanted.append((ParallelMode.WEIGHT_TRANSFER, (ranks[sender], *(ranks[receiver] for receiver in receivers))))
    if learners := tuple(ranks[member.key] for member in members if member.trains):
        wanted.append((ParallelMode.TRAIN_DATA_PARALLEL, learners))
    groups = [PlannedGroup(mode, own, _backend(backend, [ordered[rank] for rank in own])) for mode, own in wanted]
    return GroupPlan(tuple(ranked), _backend(backend, ordered), tuple(groups))


def _backend(wish: str, members: Sequence[Member]) -> str:
    """Choose a backend: nccl needs a device of its own for each rank."""
    if wish != "nccl":
        return wish
    devices = {(member.node, member.devices) for member in members if member.devices}
    return "nccl" if len(devices) == len(members) else "gloo"
