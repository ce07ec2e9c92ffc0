"""Manual placement: every component in the pool that names it, at the places that are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rlightning.config import PoolConfig
from rlightning.placement.cluster import Cluster
from rlightning.placement.plan import Seat, cpus_together
from rlightning.placement.pools import ALL, OPTION, Pool, parse_places, resolve_pools, share_out
from rlightning.placement.request import GRAIN, OPTIONS, ROLES, WorkerRequest, by_rank, grains
from rlightning.placement.rooms import Need, Room, resource_grains, units_of
from rlightning.placement.seating import beside_learners, spread_with_learners_first
from rlightning.placement.shortage import advice, after, before, refuse

_FOLLOWS = {"buffer": "train", "eval_env": "env"}
"""Component that is in no pool -> the one whose pool it is in then."""


def seats_in_pools(
    cluster: Cluster, requests: Sequence[WorkerRequest], configs: Mapping[str, PoolConfig]
) -> list[Seat]:
    """Give each worker its place in the pool of its component.

    Args:
        cluster: What there is.
        requests: All workers, tied already.
        configs: ``cluster.resource_pool``.

    Raises:
        PlacementError: With all problems at once.
    """
    pools, problems = resolve_pools(cluster, configs)
    homes, misplaced = _homes(requests, configs)
    refuse([*problems, *misplaced])
    seating = _Seating(cluster, requests, pools)
    for role in ROLES:
        text = configs[homes[role]].components.get(cast(Any, role)) if role in homes else None
        if text is not None and text.strip() != ALL:
            seating.put(role, pools[homes[role]], text)
    refuse(seating.problems)
    seating.follow_ties()
    for name in sorted(pools):
        seating.spread([role for role in ROLES if homes.get(role) == name], pools[name])
    refuse([*seating.problems, *seating.overfull(), *_broken_ties(seating.seats.values())])
    return list(seating.seats.values())


class _Seating:
    """Places that are given away so far, in pools that may have parts of one node each."""

    def __init__(self, cluster: Cluster, requests: Sequence[WorkerRequest], pools: Mapping[str, Pool]) -> None:
        self.requests = {request.name: request for request in by_rank(requests)}
        self.seats: dict[str, Seat] = {}
        self.problems: list[str] = []
        self._cpus = cpus_together(list(self.requests.values()))
        self._rooms = [Room(node, order) for order, node in enumerate(cluster.nodes)]
        self._parts = {
            name: [self._rooms[part.order].part(part.devices, part.cpus) for part in pool.parts]
            for name, pool in pools.items()
        }

    def of(self, role: str) -> list[WorkerRequest]:
        """List the workers of one role in order."""
        return [request for request in self.requests.values() if request.role == role]

    def put(self, role: str, pool: Pool, text: str) -> None:
        """Put the workers of a component at the places that are written."""
        option = f"{OPTION}.{pool.name}.components.{role}"
        workers = self.of(role)
        try:
            items = parse_places(text)
        except ValueError as error:
            self.problems.append(f"{option}: {error}")
            return
        outside = sorted({number for item in items for number in item if number >= len(pool.places)})
        if outside:
            self.problems.append(f"{option} names place {outside[-1]}, and {pool.describe()}")
            return
        try:
            shares = share_out(items, len(workers))
        except ValueError as error:
            count = OPTIONS[role].get("count", "env.num_workers")
            self.problems.append(f"{option}: {error}: name as many places as workers, or change {count}")
            return
        for worker, numbers in zip(workers, shares, strict=True):
            self._put_one(worker, pool, numbers, option)

    def _put_one(self, worker: WorkerRequest, pool: Pool, numbers: Sequence[int], option: str) -> None:
        places = [pool.places[number] for number in numbers]
        written = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
        part = places[0][0]
        node = pool.parts[part].node
        if any(other != part for other, _ in places):
            self.problems.append(
                f"{option} gives {worker.name} the places {written}, which are on more than one node; a worker is on "
                f"one: {pool.describe()}"
            )
            return
        devices: tuple[int, ...] = ()
        if worker.gpus:
            wanted = max(1, round(worker.gpus))
            devices = tuple(device for _, device in places if device is not None)
            if len(devices) < len(places):
                self.problems.append(
                    f"{option} gives {worker.name}, which asks for {worker.gpus:g} GPUs, the place {written}, which is "
                    f"a CPU of {node.name}: {pool.describe()}"
                )
                return
            if len(devices) != wanted or len(set(devices)) < wanted:
                self.problems.append(
                    f"{option} gives {worker.name} {len(set(devices))} GPUs (places {written}), and it asks for "
                    f"{worker.gpus:g}: name {wanted} for each worker, or change {OPTIONS[worker.role]['GPU']}"
                )
                return
        self._sit(worker, pool.name, self._parts[pool.name][part], devices)

    def _sit(self, worker: WorkerRequest, pool: str, room: Room, devices: tuple[int, ...]) -> None:
        need = Need(
            self._cpus[worker.name],
            (grains(worker.gpus),) if devices else (),
            grains(worker.memory_gb),
            resource_grains([worker]),
        )
        for name, _ in need.resources:
            room.whole.resources.setdefault(name, 0)
        room.take(need, [devices] if devices else [])
        self.seats[worker.name] = Seat(worker, room.node.name, devices, pool)

    def follow_ties(self) -> None:
        """Put workers without a written place beside the ones that they are tied to, where those have one."""
        for worker in self.requests.values():
            anchor = self.seats.get(worker.beside)
            if worker.name in self.seats or anchor is None:
                continue
            (room,) = [room for room in self._parts[anchor.pool] if room.node.name == anchor.node]
            devices: tuple[int, ...] = ()
            if worker.gpus:
                found = room.find(Need(0, (grains(worker.gpus),)))
                devices = anchor.devices if worker.tie != "node" else found[0] if found else ()
                if not devices:
                    self.problems.append(
                        f"{worker.name} ({worker.describe()}) finds no device on {anchor.node} beside "
                        f"{anchor.request.name}: lower {OPTIONS[worker.role]['GPU']}"
                    )
                    continue
            self._sit(worker, anchor.pool, room, devices)

    def spread(self, roles: Sequence[str], pool: Pool) -> None:
        """Spread the workers of some roles, and those that are tied to them, over all places of a pool."""
        waiting = [request for role in roles for request in self.of(role) if request.name not in self.seats]
        names = {request.name for request in waiting}
        waiting += [
            request
            for request in self.requests.values()
            if request.beside in names and request.name not in self.seats and request.name not in names
        ]
        if not waiting:
            return
        where = f"pool {pool.name!r}"
        rooms = self._parts[pool.name]
        units = units_of(waiting)
        found = before(units, [part.as_node() for part in pool.parts], where)
        if found:
            self.problems += found
            return
        homes = {seat.node for seat in self.seats.values() if seat.request.role == "train"}
        shards = [unit for unit in units if unit.root.role == "buffer"]
        seats, _ = beside_learners(shards, [room for room in rooms if room.node.name in homes], pool.name)
        seated = {seat.request.name for seat in seats}
        more, left = spread_with_learners_first(
            [unit for unit in units if unit.root.name not in seated], rooms, pool.name
        )
        self.seats.update({seat.request.name: seat for seat in (*seats, *more)})
        self.problems += after(left, where)

    def overfull(self) -> list[str]:
        """Say of which nodes and devices more was given away than they have."""
        problems = []
        on: dict[str, list[Seat]] = {}
        for seat in self.seats.values():
            on.setdefault(seat.node, []).append(seat)
        for room in self._rooms:
            here = on.get(room.node.name, [])
            for device, free in room.free.items():
                if free < 0:
                    users = [seat.request for seat in here if device in seat.devices]
                    parts = " + ".join(f"{min(user.gpus, 1):g} of {user.name}" for user in users[:6])
                    problems.append(
                        f"GPU {device} of {room.node.name} is given away {(GRAIN - free) / GRAIN:g} times: {parts}; "
                        f"name other places in {OPTION}, or {advice(users, 'GPU')}"
                    )
            problems += _overfull(room, "CPU", room.cpus, room.node.cpus, [seat.request for seat in here], " CPUs")
            if room.memory is not None:
                requests = [seat.request for seat in here if seat.request.memory_gb]
                there = room.node.memory_gb or 0.0
                problems += _overfull(room, "memory", room.memory, there, requests, " GB of memory")
            for name, amount in room.resources.items():
                requests = [seat.request for seat in here if name in seat.request.resources]
                problems += _overfull(room, name, amount, room.node.resources.get(name, 0.0), requests, f" {name}")
        for name, rooms in self._parts.items():
            for room in rooms:
                if room.cpus < 0 <= room.whole.cpus:
                    users = [s.request for s in self.seats.values() if (s.pool, s.node) == (name, room.node.name)]
                    there = room.total[0] / GRAIN
                    problems += _overfull(room, "CPU", room.cpus, there, users, f" CPUs in pool {name!r}")
        return problems


def _overfull(
    room: Room, kind: str, left: int, there: float, requests: Sequence[WorkerRequest], label: str
) -> list[str]:
    if left >= 0:
        return []
    counts = [(role, sum(request.role == role for request in requests)) for role in ROLES]
    users = ", ".join(f"{count} {role}" for role, count in counts if count)
    return [
        f"{room.node.name} has {there:g}{label}, and the workers there ask for {there - left / GRAIN:g} ({users}): "
        f"name other places in {OPTION}, or {advice(requests, kind)}"
    ]


def _homes(requests: Sequence[WorkerRequest], configs: Mapping[str, PoolConfig]) -> tuple[dict[str, str], list[str]]:
    """Find the pool of each component; workers that are tied to others have none of their own, unless it is written."""
    problems: list[str] = []
    homes: dict[str, str] = {}
    roles = {request.role for request in requests}
    tied = {request.role: request.beside.partition("[")[0] for request in requests if request.beside}
    for role in ROLES:
        pools = [name for name, config in sorted(configs.items()) if role in config.components]
        if len(pools) > 1:
            problems.append(
                f"{role} is in the pools {', '.join(pools)}: a component is in one; remove it from the others"
            )
        elif pools and role not in roles:
            problems.append(
                f"{OPTION}.{pools[0]}.components.{role}: no {role} worker is a process of its own; remove it"
            )
        elif pools:
            homes[role] = pools[0]
    for role in [role for role in ROLES if role in roles and role not in homes]:
        leader = _FOLLOWS.get(role, "")
        leader = tied.get(leader, leader) if leader not in homes else leader
        if leader in homes:
            homes[role] = homes[leader]
        elif role not in tied and not problems:
            known = ", ".join(sorted(configs)) or "none yet"
            problems.append(f"{role} is in no pool: add it to the components of one ({known})")
    for role, leader in sorted(tied.items()):
        if homes.get(role, homes.get(leader)) != homes.get(leader):
            problems.append(
                f"{role} is in pool {homes[role]!r} and {leader}, beside which it is to sit (cluster.placement"
                f".env_strategy), in {homes.get(leader)!r}: remove {role} from the first"
            )
    return homes, problems


def _broken_ties(seats: Iterable[Seat]) -> list[str]:
    by_name = {seat.request.name: seat for seat in seats}
    problems = []
    for seat in by_name.values():
        anchor = by_name.get(seat.request.beside)
        if anchor is None:
            continue
        near = seat.node == anchor.node
        if seat.request.tie != "node" and seat.devices and anchor.devices:
            near = near and seat.devices == anchor.devices
        if not near:
            here, there = (f"{one.node}{''.join(f' GPU {device}' for device in one.devices)}" for one in (seat, anchor))
            problems.append(
                f"{seat.request.name} is at {here} and {anchor.request.name}, with which it shares its "
                f"{seat.request.tie} (cluster.placement.env_strategy), at {there}: name its place, or none"
            )
    return problems[:1] + ([f"{len(problems) - 1} more workers are apart in the same way"] if len(problems) > 1 else [])
