"""The plan of a run: a pure function of its configuration and of the cluster, computed before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlightning.assembly.way import Way, settle_way
from rlightning.assembly.workers import WorkerPlan, buffer_specs, plan_workers
from rlightning.buffer.assignment import BufferRoutes, routes_by_node, routes_in_order
from rlightning.config import ClusterConfig, Config, NeedsConfig, PolicyConfig, WorkerNeedsConfig
from rlightning.device import available_gpus
from rlightning.errors import ConfigError, Problem
from rlightning.placement import Cluster, Plan, WorkerRequest, choose_strategy
from rlightning.placement.pools import as_pools
from rlightning.placement.request import OPTIONS, shard_count
from rlightning.policy.group_weights import broadcasts_weights, uses_node_memory
from rlightning.runtime.spawn import WorkerSpec
from rlightning.weights.topology import strategy_named


@dataclass(frozen=True, slots=True)
class WeightWay:
    """How new weights reach the eval policies.

    Attributes:
        strategy: ``policy.weight_buffer.buffer_strategy``.
        is_paired: Whether each train policy hands its weights to the eval policy beside it.
        is_broadcast: Whether weights travel by a communication group; else by the object store.
        by_node_memory: Whether the processes of a node hand weights on by memory that they share.
        is_per_node: Whether all eval policies of a node act with one copy.
    """

    strategy: str
    is_paired: bool
    is_broadcast: bool
    by_node_memory: bool
    is_per_node: bool

    @classmethod
    def of(cls, policy: PolicyConfig, *, is_paired: bool) -> WeightWay:
        """Choose the way that a configuration asks for."""
        strategy = policy.weight_buffer.buffer_strategy
        return cls(
            strategy,
            is_paired,
            is_broadcast=broadcasts_weights(policy),
            by_node_memory=uses_node_memory(policy),
            is_per_node=strategy_named(strategy).is_per_node,
        )


@dataclass(frozen=True, slots=True)
class RunPlan:
    """All that is decided about a run before its first worker starts; the builders and ``check`` read the same value.

    Attributes:
        config: The configuration, with what was decided instead of "auto": shards, and the way to collect.
        workers: Every worker.
        placement: The place of each worker that is a process of its own; None where Ray decides, or there is none.
        routes: Which shard stores the data of which env workers, and serves which train policies.
        way: How data are collected, and why.
        weights: The way of the weights.
    """

    config: Config
    workers: WorkerPlan
    placement: Plan | None
    routes: BufferRoutes
    way: Way
    weights: WeightWay

    @property
    def by_fragment(self) -> bool:
        """Whether one call collects all steps of an epoch, in the processes of eval policies."""
        return self.way.by_fragment

    def nodes(self) -> dict[str, str]:
        """Return the node of each worker that is placed, by the worker's name."""
        return {} if self.placement is None else {slot.worker: slot.node for slot in self.placement.slots}


def plan_run(config: Config, cluster: Cluster | None = None, workers: WorkerPlan | None = None) -> RunPlan:
    """Decide everything about a run; starts nothing.

    Args:
        config: The whole configuration.
        cluster: Where workers that are processes of their own are placed; None leaves their places to Ray.
        workers: The workers of the configuration where they are known already.

    Raises:
        PlacementError: With all that does not fit the cluster.
    """
    workers = workers if workers is not None else plan_workers(config)
    config = settle_way(config, workers.way)
    routes = routes_in_order(len(workers.env), len(workers.buffer), len(workers.train))
    placement = None
    if cluster is not None and config.cluster.any_remote:
        config, workers = _with_shards(config, workers, cluster)
        placement = choose_strategy(config.cluster)(cluster, worker_requests(config, workers.all()))
        routes = _routes(workers, placement)
        workers = replace(workers, buffer=buffer_specs(config, routes))
    return RunPlan(
        config,
        workers,
        placement,
        routes,
        workers.way,
        WeightWay.of(config.policy, is_paired=config.cluster.is_colocated),
    )


def is_placed(config: Config) -> bool:
    """Return whether the places of workers are planned; otherwise Ray decides on each."""
    cluster, placement = config.cluster, config.cluster.placement
    decided = placement.mode == "manual" or placement.strategy != "default" or cluster.is_colocated
    tied = placement.env_strategy in ("device-colocate", "node-affinity")
    counted = cluster.buffer_worker_num == "auto" and cluster.ray_address != "local"
    return cluster.any_remote and (decided or tied or counted or cluster.needs != WorkerNeedsConfig())


def worker_requests(config: Config, specs: Sequence[WorkerSpec]) -> list[WorkerRequest]:
    """List what those workers ask for that are processes of their own, or live in one of an eval policy."""
    requests = []
    for spec in specs:
        if spec.remote or (spec.host and config.cluster.remote_eval):
            role, _, number = spec.name.removesuffix("]").partition("[")
            needs: NeedsConfig = getattr(config.cluster.needs, role)
            requests.append(
                WorkerRequest(role, int(number), spec.num_cpus, spec.num_gpus, needs.memory_gb, needs.resources)
            )
    return requests


def require_devices(workers: WorkerPlan, cluster: Cluster | None = None) -> None:
    """Compare the devices that workers of this process ask for with those that are there; they take turns on them.

    Args:
        workers: All workers of the run.
        cluster: A described cluster, on one of whose nodes this process would be; None means this machine.

    Raises:
        ConfigError: With each option that asks for more than there is.
    """
    asked: dict[str, float] = {}
    for spec in workers.all():
        if spec.num_gpus and not spec.remote and not spec.host:
            option = OPTIONS[spec.name.partition("[")[0]]["GPU"]
            asked[option] = max(spec.num_gpus, asked.get(option, 0.0))
    if not asked:
        return
    there = available_gpus() if cluster is None else max(len(node.gpus) for node in cluster.nodes)
    where = "this machine has" if cluster is None else "no node of the cluster has more than"
    problems = [
        Problem(option, f"asks for {number:g} GPUs for a worker of this process, and {where} {there}")
        for option, number in asked.items()
        if number > there
    ]
    if problems:
        raise ConfigError(problems)


def placement_options(plan: RunPlan, cluster: Cluster) -> dict[str, Any]:
    """Return options that give every worker the same place again, as a tree to be laid over the run's configuration."""
    assert plan.placement is not None
    return {
        "cluster": {
            "placement": {"mode": "manual", "env_strategy": plan.config.cluster.placement.env_strategy},
            "buffer_worker_num": plan.config.cluster.buffer_worker_num,
            "resource_pool": as_pools(plan.placement, cluster),
        }
    }


def _with_shards(config: Config, workers: WorkerPlan, cluster: Cluster) -> tuple[Config, WorkerPlan]:
    """Decide what ``cluster.buffer_worker_num: auto`` means on a cluster: a shard per node with train policies."""
    if config.cluster.buffer_worker_num != "auto":
        return config, workers
    count = 1
    if config.cluster.remote_storage and config.cluster.remote_train:
        # The places of the learners do not depend on the shards.
        without = worker_requests(config, replace(workers, buffer=[]).all())
        trial = choose_strategy(_without_shards(config.cluster))(cluster, without)
        count = shard_count([slot.node for slot in trial.of("train")], len(workers.env))
    chosen = config.model_copy(update={"cluster": config.cluster.model_copy(update={"buffer_worker_num": count})})
    routes = routes_in_order(len(workers.env), count, len(workers.train))
    return chosen, replace(workers, buffer=buffer_specs(chosen, routes))


def _without_shards(config: ClusterConfig) -> ClusterConfig:
    pools = {
        name: pool.model_copy(
            update={"components": {role: text for role, text in pool.components.items() if role != "buffer"}}
        )
        for name, pool in config.resource_pool.items()
    }
    return config.model_copy(update={"resource_pool": pools})


def _routes(workers: WorkerPlan, placement: Plan) -> BufferRoutes:
    """Keep collected data on their nodes; workers of the controlling process count as one node."""
    nodes = {slot.worker: slot.node for slot in placement.slots}
    envs, shards, learners = (
        [nodes.get(spec.host or spec.name, "") for spec in specs]
        for specs in (workers.env, workers.buffer, workers.train)
    )
    if len(shards) < 2:
        return routes_in_order(len(envs), len(shards), len(learners))
    return routes_by_node(envs, shards, learners)
