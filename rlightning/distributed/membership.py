"""Which ranks there are and which groups they form: pure decisions from facts about the members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rlightning.distributed.groups import ParallelMode


@dataclass(frozen=True, slots=True)
class Member:
    """What is known of a process, or of an object in this one, before it has a rank.

    Attributes:
        key: What the caller knows it by; hashable.
        node: Id of its node.
        devices: GPUs that it may use, in the numbering of the node; empty on the CPU.
        trains: Whether it is a train policy.
    """

    key: Any
    node: str
    devices: tuple[int, ...] = ()
    trains: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """The ranks of a member.

    Attributes:
        member: Who.
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
        mode: What it is for.
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
        seats: By rank; the first one's node is where all meet.
        backend: That of the group of all.
        groups: In the order in which they are formed.
    """

    seats: tuple[Seat, ...]
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
        members: Who takes part.
        transfers: A sender of weights and its receivers, by key, for each group that weights travel in; a sender may
            have several.
        backend: The wish; "nccl" becomes "gloo" where members have no device of their own each.

    Returns:
        The plan. Groups: one per node, one per transfer (the sender is rank 0 in it), and that of the train policies
        in the order given.

    >>> plan = plan_groups([Member("a", "n0", (1,), True), Member("b", "n0", (0,), True), Member("c", "n1")])
    >>> [(seat.member.key, seat.rank, seat.local_rank) for seat in plan.seats]
    [('b', 0, 0), ('a', 1, 1), ('c', 2, 0)]
    """
    nodes = {node: place for place, node in enumerate(dict.fromkeys(member.node for member in members))}
    ordered = sorted(members, key=lambda member: (nodes[member.node], member.devices))
    sizes = Counter(member.node for member in members)
    by_node: dict[str, list[int]] = {node: [] for node in nodes}
    seats = []
    for rank, member in enumerate(ordered):
        own = by_node[member.node]
        seats.append(Seat(member, rank, len(own), sizes[member.node]))
        own.append(rank)
    ranks = {seat.member.key: seat.rank for seat in seats}
    wanted = [(ParallelMode.INTRA_NODE, tuple(own)) for own in by_node.values()]
    for sender, receivers in transfers:
        wanted.append((ParallelMode.WEIGHT_TRANSFER, (ranks[sender], *(ranks[receiver] for receiver in receivers))))
    if learners := tuple(ranks[member.key] for member in members if member.trains):
        wanted.append((ParallelMode.TRAIN_DATA_PARALLEL, learners))
    groups = [PlannedGroup(mode, own, _backend(backend, [ordered[rank] for rank in own])) for mode, own in wanted]
    return GroupPlan(tuple(seats), _backend(backend, ordered), tuple(groups))


def _backend(wish: str, members: Sequence[Member]) -> str:
    """Choose a backend: nccl wants a device of its own for each rank."""
    if wish != "nccl":
        return wish
    seats = {(member.node, member.devices) for member in members}
    return "nccl" if len(seats) == len(members) and all(member.devices for member in members) else "gloo"
