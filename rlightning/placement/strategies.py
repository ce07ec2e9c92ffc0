"""Ways to place workers: pure functions of a cluster and the workers' requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from rlightning.config import ClusterConfig
from rlightning.placement.capacity import Capacity, units_of
from rlightning.placement.cluster import Cluster
from rlightning.placement.filling import LEARNING, Filling
from rlightning.placement.manual import assign_in_pools
from rlightning.placement.plan import Assignment, Plan, make_plan
from rlightning.placement.request import ENV_TIES, GRAIN, WorkerRequest, tie_envs, tie_evals
from rlightning.placement.shortage import after, before, refuse

Strategy = Callable[[Cluster, Sequence[WorkerRequest]], Plan]
"""Raises ``PlacementError`` with all that does not fit."""


def choose_strategy(config: ClusterConfig) -> Strategy:
    """Return the strategy that a configuration asks for; it ties env workers to eval policies first.

    Policies that are colocated (``cluster.is_colocated``) are not left to Ray: they are placed by "colocate".
    """
    tie = ENV_TIES[config.placement.env_strategy]
    known = STRATEGIES | {"default": colocate} if config.is_colocated else STRATEGIES
    modes: dict[str, Strategy] = {"manual": partial(manual, config), "auto": known[config.placement.strategy]}
    place = modes[config.placement.mode]

    def strategy(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
        return place(cluster, requests if tie is None else tie_envs(requests, tie))

    return strategy


def manual(config: ClusterConfig, cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
    """Place workers in the pools that a configuration describes."""
    return make_plan("manual", assign_in_pools(cluster, requests, config.resource_pool), cluster)


def default(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
    """Spread workers evenly, learners first and shards beside them; Ray may decide otherwise where nothing is tied."""
    binding = any(request.beside for request in requests)
    return make_plan("default", _in_one_pool(cluster, requests), cluster, binding=binding)


def colocate(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
    """Use one pool for all workers; eval policies share the device of their train policy, or at least its node."""
    return make_plan("colocate", _in_one_pool(cluster, tie_evals(requests)), cluster)


def disaggregate(cluster: Cluster, requests: Sequence[WorkerRequest]) -> Plan:
    """Place learners and shards on the first nodes that hold them, and eval policies and envs on the others.

    Where there are no others, as on a single machine, the two share nodes but no device.
    """
    units = units_of(requests)
    refuse(before(units, cluster.nodes))
    learning = [unit for unit in units if unit.root.role in LEARNING]
    acting = [unit for unit in units if unit.root.role not in LEARNING]
    for shared in (False, True):
        capacities = _capacities(cluster)
        # Learners without devices leave nodes with devices to others.
        plain = not any(unit.need.devices for unit in learning)
        learners = Filling(
            sorted(capacities, key=lambda one: bool(one.devices)) if plain else capacities, "train", packed=True
        )
        learners.place_learners(learning)
        taken = {one.node for one in learners.assignments}
        if shared:
            unused = [tuple(device for device in one.devices if one.free[device] == GRAIN) for one in capacities]
            others = [one.part(replace(one.node, gpus=gpus)) for one, gpus in zip(capacities, unused, strict=True)]
        else:
            others = [one for one in capacities if one.node.name not in taken]
        actors = Filling(others, "rollout")
        actors.place(acting)
        if not learners.left and not actors.left:
            break
    where = "what the other pool of cluster.placement.strategy=disaggregate leaves"
    refuse([*after(learners), *after(actors, where)])
    return make_plan("disaggregate", [*learners.assignments, *actors.assignments], cluster)


STRATEGIES: dict[str, Strategy] = {"default": default, "disaggregate": disaggregate, "colocate": colocate}
"""By ``cluster.placement.strategy``."""


def _in_one_pool(cluster: Cluster, requests: Sequence[WorkerRequest]) -> list[Assignment]:
    units = units_of(requests)
    refuse(before(units, cluster.nodes))
    filling = Filling(_capacities(cluster), "all")
    filling.place_all(units)
    refuse(after(filling))
    return filling.assignments


def _capacities(cluster: Cluster) -> list[Capacity]:
    return [Capacity(node, order) for order, node in enumerate(cluster.nodes)]
