"""From a configuration and a cluster to the plan of who sits where."""

from __future__ import annotations

from typing import Any

from rlightning.assembly.workers import plan_workers
from rlightning.config import ClusterConfig, Config, NeedsConfig
from rlightning.device import available_gpus
from rlightning.errors import ConfigError, Problem
from rlightning.placement import Cluster, Plan, WorkerRequest, choose_strategy
from rlightning.placement.pools import as_pools
from rlightning.placement.request import OPTIONS, shard_count


def worker_requests(config: Config) -> list[WorkerRequest]:
    """List what the workers that are processes of their own ask for."""
    requests = []
    for spec in plan_workers(config).all():
        if spec.remote or (spec.host and config.cluster.remote_eval):
            role, _, number = spec.name.removesuffix("]").partition("[")
            needs: NeedsConfig = getattr(config.cluster.needs, role)
            requests.append(
                WorkerRequest(role, int(number), spec.num_cpus, spec.num_gpus, needs.memory_gb, needs.resources)
            )
    return requests


def require_devices(config: Config, cluster: Cluster | None = None) -> None:
    """Compare the devices that workers of this process ask for with those that are there; they take turns on them.

    Args:
        config: The whole configuration.
        cluster: A described cluster, on one of whose nodes this process would be; None means this machine.

    Raises:
        ConfigError: With each option that asks for more than there is.
    """
    asked: dict[str, float] = {}
    for spec in plan_workers(config).all():
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


def plan_placement(config: Config, cluster: Cluster) -> Plan:
    """Decide who sits where; the number of shards is decided already, see ``with_shards``.

    Raises:
        PlacementError: With all that does not fit.
    """
    return choose_strategy(config.cluster)(cluster, worker_requests(config))


def with_shards(config: Config, cluster: Cluster) -> Config:
    """Decide what ``cluster.buffer_worker_num: auto`` means on a cluster: a shard per node with train policies.

    Raises:
        PlacementError: If the workers do not fit even without shards.
    """
    if config.cluster.buffer_worker_num != "auto":
        return config
    count = 1
    if config.cluster.remote_storage and config.cluster.remote_train:
        # Where the learners sit does not depend on the shards.
        without = [request for request in worker_requests(config) if request.role != "buffer"]
        trial = choose_strategy(_without_shards(config.cluster))(cluster, without)
        count = shard_count([slot.node for slot in trial.of("train")], config.num_env_workers)
    chosen = config.cluster.model_copy(update={"buffer_worker_num": count})
    return config.model_copy(update={"cluster": chosen})


def placement_options(config: Config, plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Write a plan as options that give every worker the same place again.

    Returns:
        The tree of a configuration, to be laid over that of the run.
    """
    return {
        "cluster": {
            "placement": {"mode": "manual", "env_strategy": config.cluster.placement.env_strategy},
            "buffer_worker_num": config.cluster.buffer_worker_num,
            "resource_pool": as_pools(plan, cluster),
        }
    }


def _without_shards(config: ClusterConfig) -> ClusterConfig:
    pools = {
        name: pool.model_copy(
            update={"components": {role: text for role, text in pool.components.items() if role != "buffer"}}
        )
        for name, pool in config.resource_pool.items()
    }
    return config.model_copy(update={"resource_pool": pools})
