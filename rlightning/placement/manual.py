"""Manual placement: every component in the pool that names it, at the places that are written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from rlightning.config import PoolConfig
from rlightning.placement.capacity import Capacity, Need, amounts_of, units_of
from rlightning.placement.cluster import Cluster, Node
from rlightning.placement.filling import Filling
from rlightning.placement.plan import Assignment, cpus_together
from rlightning.placement.pools import ALL, OPTION, Pool, parse_places, resolve_pools, share_out
from rlightning.placement.request import GRAIN, OPTIONS, ROLES, WorkerRequest, by_rank, grains
from rlightning.placement.shortage import advice, after, before, label, refuse

_FOLLOWS = {"buffer": "train", "eval_env": "env"}
"""Component that is in no pool -> the one whose pool it is in then."""


def assign_in_pools(
    cluster: Cluster, requests: Sequence[WorkerRequest], configs: Mapping[str, PoolConfig]
) -> list[Assignment]:
    """Assign each worker to a place in the pool of its component.

    Args:
        cluster: What there is.
        requests: All workers, tied already.
        configs: ``cluster.resource_pool``.

    Raises:
        PlacementError: With all problems at once.
    """
    pools, problems = resolve_pools(cluster, configs)
    pool_of, misplaced = _pools_of_roles(requests, configs)
    refuse([*problems, *misplaced])
    manual = _Manual(cluster, requests, pools)
    for role in ROLES:
        text = configs[pool_of[role]].components.get(cast(Any, role)) if role in pool_of else None
        if text is not None and text.strip() != ALL:
            manual.put(role, pools[pool_of[role]], text)
    refuse(manual.problems)
    manual.follow_ties()
    for name in sorted(pools):
        manual.spread([role for role in ROLES if pool_of.get(role) == name], pools[name])
    refuse([*manual.problems, *manual.overfull(), *_broken_ties(manual.assigned.values())])
    return list(manual.assigned.values())


class _Manual:
    """What is assigned so far, in pools that may have parts of one node each."""

    def __init__(self, cluster: Cluster, requests: Sequence[WorkerRequest], pools: Mapping[str, Pool]) -> None:
        self.requests = {request.name: request for request in by_rank(requests)}
        self.assigned: dict[str, Assignment] = {}
        self.problems: list[str] = []
        self._cpus = cpus_together(list(self.requests.values()))
        self._capacities = [Capacity(node, order) for order, node in enumerate(cluster.nodes)]
        capacities = {capacity.node.name: capacity for capacity in self._capacities}
        self._parts = {name: [capacities[part.name].part(part) for part in pool.parts] for name, pool in pools.items()}

    def put(self, role: str, pool: Pool, text: str) -> None:
        """Put the workers of a component at the places that are written."""
        option = f"{OPTION}.{pool.name}.components.{role}"
        workers = [request for request in self.requests.values() if request.role == role]
        try:
            items = parse_places(text)
        except ValueError as error:
            self.problems.append(f"{option}: {error}")
            return
        outside = max((number for item in items for number in item), default=-1)
        if outside >= len(pool.places):
            self.problems.append(f"{option} names place {outside}, and {pool.describe()}")
            return
        try:
            shares = share_out(items, len(workers))
        except ValueError as error:
            count = OPTIONS[role].get("count", "env.num_workers")
            self.problems.append(f"{option}: {error}: name as many places as workers, or change {count}")
            return
        for worker, numbers in zip(workers, shares, strict=True):
            problem = self._put_one(worker, pool, numbers)
            self.problems += [f"{option} gives {worker.name}{problem}"] if problem else []

    def _put_one(self, worker: WorkerRequest, pool: Pool, numbers: Sequence[int]) -> str:
        """Put one worker at places of a pool; return what is wrong with them, as the rest of a sentence."""
        places = [pool.places[number] for number in numbers]
        written = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
        part = places[0][0]
        if any(other != part for other, _ in places):
            return f" the places {written}, which are on more than one node; a worker is on one: {pool.describe()}"
        devices: tuple[int, ...] = ()
        if worker.gpus:
            wanted = max(1, round(worker.gpus))
            devices = tuple(device for _, device in places if device is not None)
            if len(devices) < len(places):
                return (
                    f", which asks for {worker.gpus:g} GPUs, the place {written}, which is a CPU of "
                    f"{pool.parts[part].name}: {pool.describe()}"
                )
            if len(devices) != wanted or len(set(devices)) < wanted:
                return (
                    f" {len(set(devices))} GPUs (places {written}), and it asks for {worker.gpus:g}: name {wanted} for "
                    f"each worker, or change {OPTIONS[worker.role]['GPU']}"
                )
        self._assign(worker, pool.name, self._parts[pool.name][part], devices)
        return ""

    def _assign(self, worker: WorkerRequest, pool: str, capacity: Capacity, devices: tuple[int, ...]) -> None:
        share = (grains(worker.gpus),) if devices else ()
        need = Need(share, amounts_of([worker], self._cpus[worker.name]))
        capacity.take(need, [devices] if devices else [])
        self.assigned[worker.name] = Assignment(worker, capacity.node.name, devices, pool)

    def follow_ties(self) -> None:
        """Put workers without a written place beside the ones that they are tied to, where those have one."""
        for worker in self.requests.values():
            anchor = self.assigned.get(worker.beside)
            if worker.name in self.assigned or anchor is None:
                continue
            (capacity,) = [one for one in self._parts[anchor.pool] if one.node.name == anchor.node]
            devices: tuple[int, ...] = ()
            if worker.gpus:
                found = capacity.find(Need((grains(worker.gpus),), ()))
                devices = anchor.devices if worker.tie != "node" else found[0] if found else ()
                if not devices:
                    self.problems.append(
                        f"{worker.name} ({worker.describe()}) finds no device on {anchor.node} beside "
                        f"{anchor.request.name}: lower {OPTIONS[worker.role]['GPU']}"
                    )
                    continue
            self._assign(worker, anchor.pool, capacity, devices)

    def spread(self, roles: Sequence[str], pool: Pool) -> None:
        """Spread the workers of some roles, and those that are tied to them, over all places of a pool."""
        free = [request for request in self.requests.values() if request.name not in self.assigned]
        names = {request.name for request in free if request.role in roles}
        waiting = [request for request in free if request.name in names or request.beside in names]
        if not waiting:
            return
        where, units = f"pool {pool.name!r}", units_of(waiting)
        found = before(units, pool.parts, where)
        if found:
            self.problems += found
            return
        filling = Filling(self._parts[pool.name], pool.name)
        homes = {one.node for one in self.assigned.values() if one.request.role == "train"}
        shards = filling.place_beside([unit for unit in units if unit.root.role == "buffer"], homes)
        filling.place_all([*(unit for unit in units if unit.root.role != "buffer"), *shards])
        self.assigned.update({one.request.name: one for one in filling.assignments})
        self.problems += after(filling, where)

    def overfull(self) -> list[str]:
        """Describe the nodes and devices of which more was given away than they have."""
        problems = []
        on: dict[str, list[Assignment]] = {}
        for one in self.assigned.values():
            on.setdefault(one.node, []).append(one)
        for capacity in self._capacities:
            here, node = on.get(capacity.node.name, []), capacity.node
            for device, free in capacity.free.items():
                if free < 0:
                    users = [one.request for one in here if device in one.devices]
                    parts = " + ".join(f"{min(user.gpus, 1):g} of {user.name}" for user in users[:6])
                    problems.append(
                        f"GPU {device} of {node.name} is given away {(GRAIN - free) / GRAIN:g} times: {parts}; "
                        f"name other places in {OPTION}, or {advice(users, 'GPU')}"
                    )
            for kind, left in capacity.left.items():
                users = [one.request for one in here if one.request.amounts().get(kind) or kind == "CPU"]
                problems += _overfull(node, kind, node.amounts().get(kind, 0.0), left, users)
        for name, parts_of_pool in self._parts.items():
            for part in parts_of_pool:
                if part.whole.left["CPU"] >= 0:
                    users = [one.request for one in on.get(part.node.name, ()) if one.pool == name]
                    problems += _overfull(part.node, "CPU", part.node.cpus, part.cpus, users, f" in pool {name!r}")
        return problems


def _overfull(
    node: Node, kind: str, there: float, left: int, requests: Sequence[WorkerRequest], where: str = ""
) -> list[str]:
    if left >= 0:
        return []
    counts = [(role, sum(request.role == role for request in requests)) for role in ROLES]
    users = ", ".join(f"{count} {role}" for role, count in counts if count)
    return [
        f"{node.name} has {there:g}{label(kind)}{where}, and the workers there ask for {there - left / GRAIN:g} "
        f"({users}): name other places in {OPTION}, or {advice(requests, kind)}"
    ]


def _pools_of_roles(
    requests: Sequence[WorkerRequest], configs: Mapping[str, PoolConfig]
) -> tuple[dict[str, str], list[str]]:
    """Find the pool of each component; workers that are tied to others have none of their own, unless it is written."""
    problems: list[str] = []
    pool_of: dict[str, str] = {}
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
            pool_of[role] = pools[0]
    for role in [role for role in ROLES if role in roles and role not in pool_of]:
        leader = _FOLLOWS.get(role, "")
        leader = tied.get(leader, leader) if leader not in pool_of else leader
        if leader in pool_of:
            pool_of[role] = pool_of[leader]
        elif role not in tied and not problems:
            known = ", ".join(sorted(configs)) or "none yet"
            problems.append(f"{role} is in no pool: add it to the components of one ({known})")
    for role, leader in sorted(tied.items()):
        if pool_of.get(role, pool_of.get(leader)) != pool_of.get(leader):
            problems.append(
                f"{role} is in pool {pool_of[role]!r} and {leader}, beside which it is to sit (cluster.placement"
                f".env_strategy), in {pool_of.get(leader)!r}: remove {role} from the first"
            )
    return pool_of, problems


def _broken_ties(assignments: Iterable[Assignment]) -> list[str]:
    by_name = {one.request.name: one for one in assignments}
    problems = []
    for one in by_name.values():
        anchor = by_name.get(one.request.beside)
        if anchor is None:
            continue
        both_have_devices = one.request.tie != "node" and one.devices and anchor.devices
        if one.node != anchor.node or (both_have_devices and one.devices != anchor.devices):
            here, there = (
                f"{each.node}{''.join(f' GPU {device}' for device in each.devices)}" for each in (one, anchor)
            )
            problems.append(
                f"{one.request.name} is at {here} and {anchor.request.name}, with which it shares its "
                f"{one.request.tie} (cluster.placement.env_strategy), at {there}: name its place, or none"
            )
    return problems[:1] + ([f"{len(problems) - 1} more workers are apart in the same way"] if len(problems) > 1 else [])
