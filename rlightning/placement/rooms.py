"""What is left on each node while places are given away, and what units of workers need of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rlightning.placement.cluster import Node
from rlightning.placement.plan import Seat, cpus_together
from rlightning.placement.request import GRAIN, WorkerRequest, by_rank, grains


@dataclass(frozen=True, slots=True)
class Need:
    """What one unit takes of one node, in grains; units of equal need can change places.

    Attributes:
        cpus: CPUs.
        devices: One item for each set of workers that share a device: their part of it, or the whole devices of one.
        memory: Host memory.
        resources: Custom resources by name.
    """

    cpus: int
    devices: tuple[int, ...] = ()
    memory: int = 0
    resources: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Unit:
    """Workers that sit on one node: one, and those that are tied to it.

    Attributes:
        members: The workers, the one that the others are tied to first.
        sharers: For each item of ``need.devices`` the places in ``members`` of those who share it.
    """

    members: tuple[WorkerRequest, ...]
    sharers: tuple[tuple[int, ...], ...] = field(init=False)
    need: Need = field(init=False)

    def __post_init__(self) -> None:
        sharers = _sharers(self.members)
        devices = [sum([grains(self.members[place].gpus) for place in places]) for places in sharers]
        # The largest first: a whole device must find one that nobody has begun.
        order = sorted(range(len(sharers)), key=lambda item: (-devices[item], sharers[item]))
        alone = len(self.members) == 1
        need = Need(
            grains(self.root.cpus) if alone else sum(cpus_together(self.members).values()),
            tuple([devices[item] for item in order]),
            sum([grains(member.memory_gb) for member in self.members]),
            resource_grains(self.members),
        )
        object.__setattr__(self, "sharers", tuple([sharers[item] for item in order]))
        object.__setattr__(self, "need", need)

    @property
    def root(self) -> WorkerRequest:
        """The worker that the others are tied to."""
        return self.members[0]

    @cached_property
    def impossible(self) -> str:
        """Why no device can ever hold those who are to share it; empty if one can."""
        for places, amount in zip(self.sharers, self.need.devices, strict=True):
            members = [self.members[place] for place in places]
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
        others = ", ".join(member.name for member in self.members[1:4])
        return f"{self.root.name} with {others}" + (
            f" and {len(self.members) - 4} more" if len(self.members) > 4 else ""
        )

    def seats(self, node: str, devices: Sequence[Sequence[int]], pool: str) -> list[Seat]:
        """Say where each member sits.

        Args:
            node: Name of the node.
            devices: Indices of devices for each item of ``need.devices``.
            pool: Name of the pool.
        """
        taken: list[tuple[int, ...]] = [()] * len(self.members)
        for places, found in zip(self.sharers, devices, strict=True):
            for place in places:
                taken[place] = tuple(found)
        return [Seat(member, node, found, pool) for member, found in zip(self.members, taken, strict=True)]


def resource_grains(requests: Sequence[WorkerRequest]) -> tuple[tuple[str, int], ...]:
    """Sum up the custom resources of some workers, by name."""
    total: dict[str, int] = {}
    for request in requests:
        for name, amount in request.resources.items():
            total[name] = total.get(name, 0) + grains(amount)
    return tuple(sorted((name, amount) for name, amount in total.items() if amount)) if total else ()


def _sharers(members: Sequence[WorkerRequest]) -> list[tuple[int, ...]]:
    """Say who share a device: places in ``members`` of those without a device are in no set."""
    if len(members) == 1:
        return [(0,)] if members[0].gpus else []
    sets: list[list[int]] = []
    set_of: dict[str, int] = {}
    for place, member in enumerate(members):
        if not grains(member.gpus):
            continue
        joined = set_of.get(member.beside) if member.beside and member.tie != "node" else None
        if joined is None:
            joined = len(sets)
            sets.append([])
        sets[joined].append(place)
        set_of[member.name] = joined
    return [tuple(places) for places in sets]


def units_of(requests: Iterable[WorkerRequest]) -> list[Unit]:
    """Join workers with those that they are tied to, in the order of the ranks of the first ones.

    A tie to a worker that is not among them, such as one whose place is known already, does not count.
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


class Room:
    """What is left on one node, or on the part of it that a pool has."""

    __slots__ = ("_whole", "cpus", "devices", "free", "memory", "node", "order", "resources", "total", "workers")

    def __init__(self, node: Node, order: int) -> None:
        """Take an empty node.

        Args:
            node: The node.
            order: Its place in the cluster.
        """
        self.node, self.order = node, order
        self.cpus = grains(node.cpus)
        self.devices = node.gpus
        self.free = dict.fromkeys(node.gpus, GRAIN)
        self.memory = None if node.memory_gb is None else grains(node.memory_gb)
        self.resources = {name: grains(amount) for name, amount in node.resources.items()}
        self.workers = 0
        self.total = (self.cpus, len(self.devices) * GRAIN)
        self._whole: Room | None = None

    @property
    def whole(self) -> Room:
        """The room of the whole node."""
        return self._whole or self

    def part(self, devices: Sequence[int], cpus: float | None) -> Room:
        """Make the room of a pool: what is taken of it is taken of this one too.

        Args:
            devices: The devices that the pool has.
            cpus: The CPUs that it has; None means all.
        """
        room = Room(self.node, self.order)
        room.cpus = grains(self.node.cpus if cpus is None else min(cpus, self.node.cpus))
        room.devices, room.free = tuple(devices), self.free
        room.total = (room.cpus, len(room.devices) * GRAIN)
        room._whole = self
        return room

    def lacks(self, need: Need) -> list[str]:
        """Name the kinds of resources of which too little is left, devices aside."""
        whole = self.whole
        lacking = ["CPU"] if need.cpus > min(self.cpus, whole.cpus) else []
        lacking += ["memory"] if whole.memory is not None and need.memory > whole.memory else []
        return lacking + [name for name, amount in need.resources if amount > whole.resources.get(name, 0)]

    def find(self, need: Need) -> list[tuple[int, ...]] | None:
        """Find devices for each item of a need; None if the unit does not fit.

        Whole devices are the first free ones. A part fills up a device that is in use, before another is begun.
        """
        if self.lacks(need):
            return None
        if not need.devices:
            return []
        free = self.free
        if len(need.devices) > 1:
            free = dict(free)
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
            if len(need.devices) > 1:
                for device in chosen:
                    free[device] -= min(amount, GRAIN)
        return found

    def take(self, need: Need, devices: Sequence[Sequence[int]], count: int = 1) -> None:
        """Give away what a unit of ``count`` workers needs."""
        whole = self.whole
        for amount, chosen in zip(need.devices, devices, strict=True):
            for device in chosen:
                self.free[device] -= min(amount, GRAIN)
        if self._whole is not None:
            self.cpus -= need.cpus
            self.workers += count
        whole.cpus -= need.cpus
        whole.workers += count
        if whole.memory is not None:
            whole.memory -= need.memory
        for name, amount in need.resources:
            whole.resources[name] -= amount

    def left(self) -> tuple[int, int]:
        """Count the CPUs and the parts of devices that are left."""
        return min(self.cpus, self.whole.cpus), sum(self.free[device] for device in self.devices)
