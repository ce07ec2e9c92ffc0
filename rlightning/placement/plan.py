"""Who sits where, as a value: it is shown, saved, compared and applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rlightning.placement.request import GRAIN, ROLES, WorkerRequest, grains


@dataclass(frozen=True, slots=True)
class Seat:
    """Where one worker goes, before the plan is whole.

    Attributes:
        request: What it asked for.
        node: Name of the node.
        devices: Indices of its devices there; a share of a device is one of them.
        pool: Name of the pool that the place belongs to.
    """

    request: WorkerRequest
    node: str
    devices: tuple[int, ...] = ()
    pool: str = "all"


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one worker.

    Attributes:
        worker: Name of the worker.
        role: Its role.
        rank: Its number in the plan.
        node: Name of the node.
        devices: Indices of its devices, as they are counted on the node.
        share: Part of each of the devices that it may use: 1 is all of it.
        bundle: Index of the bundle that holds its resources.
        pool: Name of the pool.
        process: Name of the worker in whose process it lives; its own name where it has one.
        cpus: CPUs that it takes; 0 where it lives in another one's process and takes no more than that one.
        memory_gb: Host memory that it takes, in GB.
        resources: Custom resources that it takes.
    """

    worker: str
    role: str
    rank: int
    node: str
    devices: tuple[int, ...] = ()
    share: float = 1.0
    bundle: int = 0
    pool: str = "all"
    process: str = ""
    cpus: float = 0.0
    memory_gb: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def gpus(self) -> float:
        """Devices that it takes, as a number."""
        return len(self.devices) * self.share


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources of one node that are reserved together, for the workers that name the bundle.

    Workers that share a device are in one bundle; workers without a device are in one bundle per node and pool.

    Attributes:
        index: Its number.
        node: Name of the node.
        cpus: CPUs.
        gpus: Devices; a part of one where just a part is used.
        devices: Their indices on the node.
        memory_gb: Host memory in GB.
        resources: Custom resources.
    """

    index: int
    node: str
    cpus: float = 0.0
    gpus: float = 0.0
    devices: tuple[int, ...] = ()
    memory_gb: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The places of all workers that are processes of their own.

    Attributes:
        strategy: What made it: ``cluster.placement.strategy``, or "manual".
        binding: Whether workers must sit there; otherwise it is an example of what Ray may decide.
        slots: Places in the order of ranks.
        bundles: What is reserved where, in the order of their indices.
    """

    strategy: str
    binding: bool
    slots: tuple[Slot, ...]
    bundles: tuple[Bundle, ...]

    def of(self, role: str) -> list[Slot]:
        """List the places of one role in order."""
        return [slot for slot in self.slots if slot.role == role]

    def on(self, node: str) -> list[Slot]:
        """List the places on one node in the order of ranks."""
        return [slot for slot in self.slots if slot.node == node]

    def to_dict(self) -> dict[str, Any]:
        """Give plain values, for YAML or JSON; what is left at its default is left out."""
        return {
            "strategy": self.strategy,
            "binding": self.binding,
            "slots": [_plain(slot) for slot in self.slots],
            "bundles": [_plain(bundle) for bundle in self.bundles],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Undo ``to_dict``."""
        return cls(
            strategy=data["strategy"],
            binding=data["binding"],
            slots=tuple(Slot(**_with_tuples(item)) for item in data["slots"]),
            bundles=tuple(Bundle(**_with_tuples(item)) for item in data["bundles"]),
        )


def make_plan(strategy: str, seats: Sequence[Seat], node_order: Mapping[str, int], *, binding: bool) -> Plan:
    """Put seats in the order of ranks, and gather what they take into bundles.

    Args:
        strategy: Name of what decided.
        seats: One per worker.
        node_order: Name of each node -> its place in the cluster, which is the order of bundles.
        binding: See ``Plan``.
    """
    seats = sorted(seats, key=lambda seat: (ROLES.index(seat.request.role), seat.request.index))
    cpus = _cpus_taken(seats)
    hosts = {
        seat.request.name: seat.request.beside if _in_a_process(seat.request) else seat.request.name for seat in seats
    }
    bundle_of, keys = _bundles_of(seats, hosts, node_order)
    slots = tuple(
        Slot(
            worker=seat.request.name,
            role=seat.request.role,
            rank=rank,
            node=seat.node,
            devices=seat.devices,
            share=1.0 if seat.request.gpus >= 1 or not seat.devices else grains(seat.request.gpus) / GRAIN,
            bundle=bundle_of[seat.request.name],
            pool=seat.pool,
            process=hosts[seat.request.name],
            cpus=cpus[seat.request.name] / GRAIN,
            memory_gb=seat.request.memory_gb,
            resources=dict(sorted(seat.request.resources.items())),
        )
        for rank, seat in enumerate(seats)
    )
    return Plan(strategy, binding, slots, _sum_up(slots, keys))


def cpus_together(requests: Sequence[WorkerRequest]) -> dict[str, int]:
    """Give the CPUs, in grains, that each of some workers takes: those in one process take turns, not a CPU each.

    The owner of the process takes its own, and whoever lives in it just what it wants more than all before it.
    """
    taken: dict[str, int] = {}
    most: dict[str, int] = {}
    for request in sorted(requests, key=_in_a_process):
        host = request.beside if _in_a_process(request) else request.name
        before = most.get(host, 0)
        most[host] = max(before, grains(request.cpus))
        taken[request.name] = most[host] - before
    return taken


def _in_a_process(request: WorkerRequest) -> bool:
    return bool(request.beside) and request.tie == "process"


def _cpus_taken(seats: Sequence[Seat]) -> dict[str, int]:
    return cpus_together([seat.request for seat in seats])


def _bundles_of(
    seats: Sequence[Seat], hosts: Mapping[str, str], node_order: Mapping[str, int]
) -> tuple[dict[str, int], list[tuple[str, tuple[int, ...]]]]:
    """Give each worker the index of its bundle; and for each bundle its node and devices."""
    # Devices that one worker takes together are joined; so are the devices of workers of one process.
    owner: dict[tuple[str, int], tuple[str, int]] = {}

    def find(device: tuple[str, int]) -> tuple[str, int]:
        while owner.setdefault(device, device) != device:
            device = owner[device]
        return device

    first: dict[str, tuple[str, int]] = {}
    for seat in seats:
        process = hosts[seat.request.name]
        for device in seat.devices:
            root, other = find(first.setdefault(process, (seat.node, device))), find((seat.node, device))
            owner[max(root, other)] = min(root, other)
    members: dict[tuple[str, int], list[int]] = {}
    for node, device in owner:
        members.setdefault(find((node, device)), []).append(device)

    def key(seat: Seat) -> tuple[int, int, int, str]:
        # Bundles with devices come first on each node, by their first device.
        at = first.get(hosts[seat.request.name])
        if at is not None:
            return node_order[seat.node], 0, find(at)[1], ""
        return node_order[seat.node], 1, 0, seat.pool

    keys = {seat.request.name: key(seat) for seat in seats}
    node_names = {node_order[seat.node]: seat.node for seat in seats}
    ordered = sorted(set(keys.values()))
    index = {found: place for place, found in enumerate(ordered)}
    described = [
        (node_names[order], tuple(sorted(members[node_names[order], device])) if not without else ())
        for order, without, device, _ in ordered
    ]
    return {name: index[found] for name, found in keys.items()}, described


def _sum_up(slots: Sequence[Slot], keys: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Bundle, ...]:
    cpus, gpus, memory = [0] * len(keys), [0] * len(keys), [0] * len(keys)
    resources: list[Counter[str]] = [Counter() for _ in keys]
    for slot in slots:
        cpus[slot.bundle] += grains(slot.cpus)
        gpus[slot.bundle] += len(slot.devices) * grains(slot.share)
        memory[slot.bundle] += grains(slot.memory_gb)
        for name, amount in slot.resources.items():
            resources[slot.bundle][name] += grains(amount)
    return tuple(
        Bundle(
            index,
            node,
            cpus[index] / GRAIN,
            gpus[index] / GRAIN,
            devices,
            memory[index] / GRAIN,
            {name: amount / GRAIN for name, amount in sorted(resources[index].items())},
        )
        for index, (node, devices) in enumerate(keys)
    )


def _plain(item: Slot | Bundle) -> dict[str, Any]:
    defaults = {one.name: one.default for one in fields(item)}
    data = {name: value for name, value in asdict(item).items() if value != defaults[name] and value != {}}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


def _with_tuples(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if name == "devices" else value for name, value in item.items()}
