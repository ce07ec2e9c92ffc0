"""Ways to give workers their places: pure functions of a cluster and the workers' requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rlightning.config import ClusterConfig
from rlightning.placement.cluster import Cluster
from rlightning.placement.manual import seats_in_pools
from rlightning.placement.plan import Plan, Seat, make_plan
from rlightning.placement.request import ENV_TIES, GRAIN, WorkerRequest, tie_envs, tie_evals
from rlightning.placement.rooms import Room, Unit, units_of
from rlightning.placement.seating import LEARNING, learners_and_shards, place_all, spread_with_learners_first
from rlightning.placement.shortage import after, before, refuse

Strategy = Callable[[Cluster, Sequence[WorkerRequest]], Plan]
"""Raises ``PlacementError`` with all that does not fit."""


def choose_strategy(config: ClusterConfig) -> Strategy:
    """Give the strategy that a configuration asks for; it ties env workers to eval policies first.

    Policies that are colocated (``cluster.is_colocated``) are not left to Ray: they are placed by "colocate".
    """
    tie, pools = ENV_TIES[config.placement.env_strategy], config.resource_pool

    def manual(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
        return _plan("manual", cluster, seats_in_pools(cluster, requests, pools))

    known = STRATEGIES | {"default": colocate} if config.is_colocated else STRATEGIES
    place = {"manual": manual, "auto": known[config.placement.strategy]}[config.placement.mode]

    def strategy(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
        return place(cluster, requests if tie is None else tie_envs(requests, tie))

    return strategy


def default(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
    """Spread workers evenly, learners first and shards beside them; Ray may decide otherwise where nothing is tied."""
    seats = _in_one_pool(cluster, requests)
    return _plan("default", cluster, seats, binding=any(request.beside for request in requests))


def colocate(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
    """Have all workers in one pool; eval policies share the device of their train policy, or at least its node."""
    return _plan("colocate", cluster, _in_one_pool(cluster, tie_evals(requests)))


def disaggregate(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
    """Give learners and shards the first nodes that hold them, and eval policies and envs the others.

    Where there are no others, as on a single machine, the two share nodes but no device.
    """
    units = units_of(requests)
    refuse(before(units, cluster.nodes))
    learning = [unit for unit in units if unit.root.role in LEARNING]
    acting = [unit for unit in units if unit.root.role not in LEARNING]
    for shared in (False, True):
        rooms = _rooms(cluster)
        seats, left = learners_and_shards(learning, _plain_nodes_first(rooms, learning), "train", packed=True)
        taken = {seat.node for seat in seats}
        if shared:
            others = [room.part([one for one in room.devices if room.free[one] == GRAIN], None) for room in rooms]
        else:
            others = [room for room in rooms if room.node.name not in taken]
        found, missed = place_all(acting, others, "rollout")
        if not left and not missed:
            break
    where = "what the other pool of cluster.placement.strategy=disaggregate leaves"
    refuse([*after(left), *after(missed, where)])
    return _plan("disaggregate", cluster, [*seats, *found])


STRATEGIES: dict[str, Strategy] = {"default": default, "disaggregate": disaggregate, "colocate": colocate}
"""By ``cluster.placement.strategy``."""


def _in_one_pool(cluster: Cluster, requests: Sequence[WorkerRequest]) -> list[Seat]:
    units = units_of(requests)
    refuse(before(units, cluster.nodes))
    seats, left = spread_with_learners_first(units, _rooms(cluster), "all")
    refuse(after(left))
    return seats


def _plain_nodes_first(rooms: Sequence[Room], units: Iterable[Unit]) -> list[Room]:
    """Let learners without devices leave nodes with devices to others."""
    if any(unit.need.devices for unit in units):
        return list(rooms)
    return sorted(rooms, key=lambda room: (bool(room.devices), room.order))


def _rooms(cluster: Cluster) -> list[Room]:
    return [Room(node, order) for order, node in enumerate(cluster.nodes)]


def _plan(strategy: str, cluster: Cluster, seats: Sequence[Seat], *, binding: bool = True) -> Plan:
    order = {node.name: place for place, node in enumerate(cluster.nodes)}
    return make_plan(strategy, seats, order, binding=binding)
