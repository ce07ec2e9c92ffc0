"""The place of each worker, as a value: it is shown, saved, compared and applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from rlightning.placement.cluster import Cluster
from rlightning.placement.request import GRAIN, ROLES, WorkerRequest, grains


@dataclass(frozen=True, slots=True)
class Assignment:
    """The node and the devices of one worker, before the plan is whole.

    Attributes:
        request: What the worker asked for.
        node: Name of the node.
        devices: Indices of its devices there; a share of a device is one of them.
        pool: Name of the pool that these belong to.
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
        reservation: Index of the reservation that holds its resources.
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
    reservation: int = 0
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
class Reservation:
    """Resources of one node that are held together, for the workers whose slots name the reservation.

    Workers that share a device are in one; workers without a device are in one per node and pool.

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
        binding: Whether workers must be there; otherwise it is an example of what Ray may decide.
        slots: Places in the order of ranks.
        reservations: What is held where, in the order of their indices.
    """

    strategy: str
    binding: bool
    slots: tuple[Slot, ...]
    reservations: tuple[Reservation, ...]

    def of(self, role: str) -> list[Slot]:
        """List the slots of one role in order."""
        return [slot for slot in self.slots if slot.role == role]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for YAML or JSON; what is left at its default is left out."""
        plain: dict[str, Any] = TypeAdapter(Plan).dump_python(self, mode="json", exclude_defaults=True)
        return plain


def make_plan(strategy: str, assignments: Iterable[Assignment], cluster: Cluster, *, binding: bool = True) -> Plan:
    """Put assignments in the order of ranks, and gather what they take into reservations.

    Args:
        strategy: Name of what decided.
        assignments: One per worker.
        cluster: The order of its nodes is that of reservations.
        binding: See ``Plan``.
    """
    ranked = sorted(assignments, key=lambda one: (ROLES.index(one.request.role), one.request.index))
    requests = [one.request for one in ranked]
    cpus = cpus_together(requests)
    places = _reserved(ranked, cluster)
    index_of = {place: index for index, place in enumerate(sorted(set(places)))}
    slots = tuple(
        Slot(
            worker=one.request.name,
            role=one.request.role,
            rank=rank,
            node=one.node,
            devices=one.devices,
            share=1.0 if one.request.gpus >= 1 or not one.devices else grains(one.request.gpus) / GRAIN,
            reservation=index_of[place],
            pool=one.pool,
            process=_process(one.request),
            cpus=cpus[one.request.name] / GRAIN,
            memory_gb=one.request.memory_gb,
            resources=dict(sorted(one.request.resources.items())),
        )
        for rank, (one, place) in enumerate(zip(ranked, places, strict=True))
    )
    described = [(cluster.nodes[order].name, devices) for order, _, devices, _ in index_of]
    return Plan(strategy, binding, slots, _sum_up(slots, described))


def cpus_together(requests: Sequence[WorkerRequest]) -> dict[str, int]:
    """Return the CPUs, in grains, that each of some workers takes: those in one process take turns, not a CPU each.

    The owner of the process takes its own, and a worker that lives in it what it wants more than all before it.
    """
    taken: dict[str, int] = {}
    most: dict[str, int] = {}
    for request in sorted(requests, key=lambda request: _process(request) != request.name):
        process, amount = _process(request), grains(request.cpus)
        taken[request.name] = max(0, amount - most.get(process, 0))
        most[process] = max(most.get(process, 0), amount)
    return taken


def _process(request: WorkerRequest) -> str:
    """Name the worker in whose process a worker lives."""
    return request.beside if request.beside and request.tie == "process" else request.name


_Place = tuple[int, bool, tuple[int, ...], str]
"""Index of a node, whether it is without devices, devices, pool where there are none: reservations in their order."""


def _reserved(assignments: Sequence[Assignment], cluster: Cluster) -> list[_Place]:
    """Return what is reserved for each worker: the devices of its process and all that are taken together with them."""
    # Devices that one process takes are joined, and so are those that two processes share: sets of a union-find.
    owner: dict[tuple[str, int], tuple[str, int]] = {}

    def find(device: tuple[str, int]) -> tuple[str, int]:
        while owner.setdefault(device, device) != device:
            device = owner[device]
        return device

    first: dict[str, tuple[str, int]] = {}
    for one in assignments:
        for device in one.devices:
            root, other = find(first.setdefault(_process(one.request), (one.node, device))), find((one.node, device))
            owner[max(root, other)] = min(root, other)
    joined: dict[tuple[str, int], list[int]] = {}
    for key in sorted(owner):
        joined.setdefault(find(key), []).append(key[1])
    sets = {root: tuple(devices) for root, devices in joined.items()}
    order = {node.name: index for index, node in enumerate(cluster.nodes)}

    def place(one: Assignment) -> _Place:
        key = first.get(_process(one.request))
        return order[one.node], key is None, sets[find(key)] if key else (), "" if key else one.pool

    return [place(one) for one in assignments]


def _sum_up(slots: Sequence[Slot], described: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Reservation, ...]:
    totals: list[Counter[str]] = [Counter() for _ in described]
    custom: list[Counter[str]] = [Counter() for _ in described]
    for slot in slots:
        total = totals[slot.reservation]
        total["cpus"] += grains(slot.cpus)
        total["gpus"] += len(slot.devices) * grains(slot.share)
        total["memory_gb"] += grains(slot.memory_gb)
        for name, amount in slot.resources.items():
            custom[slot.reservation][name] += grains(amount)
    return tuple(
        Reservation(
            index,
            node,
            devices=devices,
            resources={name: amount / GRAIN for name, amount in sorted(custom[index].items())},
            **{name: amount / GRAIN for name, amount in totals[index].items()},
        )
        for index, (node, devices) in enumerate(described)
    )
