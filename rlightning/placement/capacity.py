"""What units of workers need of one node, and what each node still has to give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rlightning.placement.cluster import Node
from rlightning.placement.plan import Assignment, cpus_together
from rlightning.placement.request import GRAIN, WorkerRequest, by_rank, grains

UNKNOWN = {"memory": math.inf}
"""What a node has of a kind of resource where it is not known; it has none of the other kinds."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one unit takes of one node, in grains; units of equal need can change places.

    Attributes:
        devices: One item for each set of workers that share a device: their part of it, or the whole devices of one.
        amounts: Kinds of resources but devices, in the order of their names, and how much of each; none is 0.
    """

    devices: tuple[int, ...]
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Unit:
    """Workers that are on one node: one, and those that are tied to it.

    Attributes:
        members: The workers, the one that the others are tied to first.
        sharers: For each item of ``need.devices`` the indices in ``members`` of the workers that share it.
    """

    members: tuple[WorkerRequest, ...]
    sharers: tuple[tuple[int, ...], ...] = field(init=False)
    need: Need = field(init=False)

    def __post_init__(self) -> None:
        sharers = _sharers(self.members)
        devices = [sum([grains(self.members[index].gpus) for index in sharing]) for sharing in sharers]
        # The largest first: a whole device must find one that nothing uses yet.
        order = sorted(range(len(sharers)), key=lambda item: (-devices[item], sharers[item]))
        cpus = sum(cpus_together(self.members).values())
        need = Need(tuple([devices[item] for item in order]), amounts_of(self.members, cpus))
        object.__setattr__(self, "sharers", tuple([sharers[item] for item in order]))
        object.__setattr__(self, "need", need)

    @property
    def root(self) -> WorkerRequest:
        """The worker that the others are tied to."""
        return self.members[0]

    @cached_property
    def impossible(self) -> str:
        """Why no device can ever hold the workers that are to share it; empty if one can."""
        for sharing, amount in zip(self.sharers, self.need.devices, strict=True):
            members = [self.members[index] for index in sharing]
            if len(members) > 1 and amount > GRAIN:
                parts = " + ".join(f"{member.gpus:g} of {member.name}" for member in members[:4])
                more = f" + {len(members) - 4} more" if len(members) > 4 else ""
                return f"{parts}{more} are {amount / GRAIN:g} of the one device that they share"
            if amount > GRAIN and amount % GRAIN:
                name, gpus = members[0].name, members[0].gpus
                return f"{name} asks for {gpus:g} GPUs: a worker takes a part of one device, or whole ones"
        return ""

    def describe(self) -> str:
        """Name the unit in an error."""
        if len(self.members) == 1:
            return self.root.name
        more = f" and {len(self.members) - 4} more" if len(self.members) > 4 else ""
        return f"{self.root.name} with {', '.join(member.name for member in self.members[1:4])}{more}"

    def assign(self, node: str, devices: Sequence[Sequence[int]], pool: str) -> list[Assignment]:
        """Assign each member to a node, and to the devices that were found for each item of ``need.devices``."""
        taken: list[tuple[int, ...]] = [()] * len(self.members)
        for sharing, found in zip(self.sharers, devices, strict=True):
            for index in sharing:
                taken[index] = tuple(found)
        return [Assignment(member, node, found, pool) for member, found in zip(self.members, taken, strict=True)]


def amounts_of(requests: Sequence[WorkerRequest], cpus: int) -> tuple[tuple[str, int], ...]:
    """Sum up what workers that take ``cpus`` grains of CPUs together ask for, devices aside; see ``Need.amounts``."""
    total = {"CPU": cpus}
    for request in requests:
        if request.memory_gb or request.resources:
            for kind, amount in (("memory", request.memory_gb), *request.resources.items()):
                total[kind] = total.get(kind, 0) + grains(amount)
    return tuple(sorted([(kind, amount) for kind, amount in total.items() if amount]))


def _sharers(members: Sequence[WorkerRequest]) -> list[tuple[int, ...]]:
    """Return the sets of workers that share a device, as indices in ``members``."""
    if len(members) == 1:
        return [(0,)] if members[0].gpus else []
    sets: list[list[int]] = []
    set_of: dict[str, int] = {}
    for index, member in enumerate(members):
        if not grains(member.gpus):
            continue
        joined = set_of.get(member.beside) if member.beside and member.tie != "node" else None
        if joined is None:
            joined = len(sets)
            sets.append([])
        sets[joined].append(index)
        set_of[member.name] = joined
    return [tuple(sharing) for sharing in sets]


def units_of(requests: Iterable[WorkerRequest]) -> list[Unit]:
    """Join workers with those that are tied to them, in the order of the ranks of the first ones.

    A tie to a worker that is not among them, such as one that is assigned already, does not count.
    """
    requests = by_rank(list(requests))
    names = {request.name for request in requests}
    tied: dict[str, list[WorkerRequest]] = {}
    for request in requests:
        if request.beside in names:
            tied.setdefault(request.beside, []).append(request)

    def with_tied(request: WorkerRequest) -> list[WorkerRequest]:
        return [request, *(member for other in tied.get(request.name, ()) for member in with_tied(other))]

    return [Unit(tuple(with_tied(request))) for request in requests if request.beside not in names]


class Capacity:
    """What is left on one node, or on the part of it that a pool has.

    Args:
        node: The node, of which nothing is taken yet.
        order: Its index in the cluster.
        whole: The capacity of the whole node where this is one of a part: what is taken here is taken there too.
    """

    __slots__ = ("cpus", "devices", "free", "left", "node", "order", "whole", "workers")

    def __init__(self, node: Node, order: int, whole: Capacity | None = None) -> None:
        self.node, self.order = node, order
        self.whole: Capacity = whole or self
        self.devices = node.gpus
        self.free: dict[int, int] = whole.free if whole else dict.fromkeys(node.gpus, GRAIN)
        amounts = {kind: grains(amount) for kind, amount in node.amounts().items()}
        self.left: dict[str, int] = whole.left if whole else amounts
        self.cpus = grains(node.cpus)
        self.workers = 0

    def part(self, node: Node) -> Capacity:
        """Return the capacity of a part of the node, which has some of its devices and CPUs."""
        return Capacity(node, self.order, self)

    def lacks(self, need: Need) -> list[str]:
        """Name the kinds of resources of which too little is left, devices aside."""
        left = self.left
        return [
            kind
            for kind, amount in need.amounts
            if amount > left.get(kind, UNKNOWN.get(kind, 0)) or (kind == "CPU" and amount > self.cpus)
        ]

    def find(self, need: Need) -> list[tuple[int, ...]] | None:
        """Find devices for each item of a need; None if the unit does not fit.

        Whole devices are the first free ones. A part fills up a device that is in use, before another is begun.
        """
        if self.lacks(need):
            return None
        if not need.devices:
            return []
        several = len(need.devices) > 1
        free = dict(self.free) if several else self.free
        found: list[tuple[int, ...]] = []
        for amount in need.devices:
            if amount >= GRAIN:
                count = amount // GRAIN
                chosen = tuple(device for device in self.devices if free[device] == GRAIN)[:count]
                if len(chosen) < count:
                    return None
            else:
                fitting = [device for device in self.devices if free[device] >= amount]
                if not fitting:
                    return None
                chosen = (min(fitting, key=free.__getitem__),)
            found.append(chosen)
            if several:
                for device in chosen:
                    free[device] -= min(amount, GRAIN)
        return found

    def take(self, need: Need, devices: Sequence[Sequence[int]], count: int = 1) -> None:
        """Subtract what a unit of ``count`` workers needs, which may be more than there is."""
        for amount, chosen in zip(need.devices, devices, strict=True):
            for device in chosen:
                self.free[device] -= min(amount, GRAIN)
        for kind, amount in need.amounts:
            if kind in self.left or kind not in UNKNOWN:
                self.left[kind] = self.left.get(kind, 0) - amount
        cpus = dict(need.amounts).get("CPU", 0)
        for capacity in {self, self.whole}:
            capacity.cpus -= cpus
            capacity.workers += count

    def remaining(self) -> tuple[int, int]:
        """Count the CPUs and the parts of devices that are left."""
        return min(self.cpus, self.left["CPU"]), sum(self.free[device] for device in self.devices)
