"""The places of a run's workers on the cluster that is there: planned, held, and given to whoever starts a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rlightning.assembly.context import current_run
from rlightning.assembly.place import placement_options, plan_placement, with_shards, worker_requests
from rlightning.assembly.workers import plan_workers
from rlightning.buffer.assignment import BufferRoutes, routes_by_node
from rlightning.config import Config, WorkerNeedsConfig
from rlightning.observability.run_folder import to_yaml
from rlightning.placement import Bundle, Cluster, Node, Plan
from rlightning.placement.rooms import units_of
from rlightning.placement.shortage import before, refuse

if TYPE_CHECKING:
    from rlightning.runtime.ray_backend import RayNode, Reservation

PLAN = "plan.yaml"
"""File of a run's folder: every worker's place."""
PLACED = "placed.yaml"
"""File of a run's folder: its configuration with manual pools that give the same places."""

_OPEN: list[RunSeats] = []
"""Those whose workers are there, or are about to be."""
_RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")
_LEAST_CPU = 0.0001
"""What a bundle holds at least, since Ray takes none that is empty."""


def seats_of(config: Config) -> RunSeats | None:
    """Give the places of a run; None where no worker is remote, or Ray decides on each by itself."""
    if not _is_placed(config):
        return None
    for seats in _OPEN:
        if seats.serves(config):
            return seats
    seats = RunSeats(config)
    _OPEN.append(seats)
    return seats


class AnySeat:
    """Lets Ray decide on each worker, where there is a node at all that can hold it.

    Args:
        config: The whole configuration.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def take(self) -> None:
        from rlightning.runtime import ray_backend

        refuse(before(units_of(worker_requests(self._config)), running_cluster(ray_backend.list_nodes()).nodes))

    def place_of(self, worker: str) -> Mapping[str, Any]:
        return {}

    def leave(self) -> None:
        return None


class RunSeats:
    """Plans where the workers of a run go, when the first of them starts, and holds what they need until the last ends.

    Args:
        config: The whole configuration.

    Attributes:
        asked: The configuration as it was given.
    """

    def __init__(self, config: Config) -> None:
        self.asked = config
        self._config = config
        self._plan: Plan | None = None
        self._node_ids: dict[str, str] = {}  # Ray's ids by the names of the plan
        self._reservation: Reservation | None = None
        self._users = 0

    def serves(self, config: Config) -> bool:
        """Tell whether these are the places of a configuration, as it was given or as the cluster completed it."""
        return config in (self.asked, self._config)

    @property
    def config(self) -> Config:
        """The configuration with what the cluster decides: the number of shards."""
        self._join()
        return self._config

    @property
    def plan(self) -> Plan:
        """The places.

        Raises:
            PlacementError: With all that does not fit the cluster.
        """
        self._join()
        assert self._plan is not None
        return self._plan

    def routes(self) -> BufferRoutes | None:
        """Say which shard takes the data of which env workers and gives them to which train policies.

        Workers of this process are beside whoever they exchange data with, as far as it matters.
        """
        nodes = {slot.worker: slot.node for slot in self.plan.slots}
        workers = plan_workers(self.config)
        shards = [nodes.get(spec.name, "") for spec in workers.buffer]
        if len(shards) < 2:
            return None
        envs = [nodes.get(spec.host or spec.name, "") for spec in workers.env]
        return routes_by_node(envs, shards, [nodes.get(spec.name, "") for spec in workers.train])

    def take(self) -> None:
        from rlightning.runtime import ray_backend

        plan = self.plan
        if self._reservation is None and plan.binding:
            held = [(self._node_ids[bundle.node], _by_rays_names(bundle)) for bundle in plan.bundles]
            try:
                self._reservation = ray_backend.reserve(held, self._config.cluster.start_timeout_s)
            except BaseException:
                self._end()
                raise
        self._users += 1

    def place_of(self, worker: str) -> Mapping[str, Any]:
        if self._reservation is None:
            return {}
        (slot,) = (slot for slot in self.plan.slots if slot.worker == worker)
        return self._reservation.options(slot.bundle)

    def leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._end()

    def _end(self) -> None:
        """Give everything back; whoever starts a run of this configuration later plans anew."""
        from rlightning.runtime import ray_backend

        if self._reservation is not None:
            self._reservation.release()
        self._reservation = self._plan = None
        if self in _OPEN:
            _OPEN.remove(self)
        ray_backend.leave()

    def _join(self) -> None:
        """Look at the cluster and plan, once; Ray is kept until the last worker has left."""
        if self._plan is not None:
            return
        from rlightning.runtime import ray_backend

        remote = [spec for spec in plan_workers(self.asked).all() if spec.remote]
        cpus, gpus = sum(spec.num_cpus for spec in remote), sum(spec.num_gpus for spec in remote)
        ray_backend.join(self.asked.cluster.ray_address, cpus, gpus)
        try:
            nodes = ray_backend.list_nodes()
            cluster = running_cluster(nodes)
            self._node_ids = {name: node.node_id for name, node in _names(nodes).items()}
            self._config = with_shards(self.asked, cluster)
            self._plan = plan_placement(self._config, cluster)
            folder = current_run.get().plan_dir
            if folder is not None and self._plan.binding:
                save_plan(folder, self._config, self._plan, cluster)
        except BaseException:
            self._end()
            raise


def save_plan(folder: Path, config: Config, plan: Plan, cluster: Cluster) -> None:
    """Write ``PLAN`` and ``PLACED`` into the folder of a run."""
    (folder / PLAN).write_text(yaml.safe_dump(plan.to_dict(), sort_keys=False), encoding="utf-8")
    tree = config.model_dump()
    tree["cluster"] |= placement_options(config, plan, cluster)["cluster"]
    header = "# The run again, with every worker in the place that it had: rlightning train FILE\n"
    (folder / PLACED).write_text(header + to_yaml(Config.model_validate(tree)), encoding="utf-8")


def running_cluster(nodes: list[RayNode]) -> Cluster:
    """Describe a Ray cluster by what its nodes offer in all; a node is called by its address."""
    return Cluster(
        tuple(
            Node(
                name,
                cpus=node.resources.get("CPU", 0.0),
                gpus=tuple(range(int(node.resources.get("GPU", 0)))),
                memory_gb=node.resources["memory"] / 1e9 if "memory" in node.resources else None,
                resources={
                    kind: amount
                    for kind, amount in node.resources.items()
                    if kind not in _RAYS_OWN and not kind.startswith(("node:", "accelerator_type:"))
                },
            )
            for name, node in _names(nodes).items()
        )
    )


def _names(nodes: list[RayNode]) -> dict[str, RayNode]:
    """Name nodes by their addresses, and those that share one (as simulated ones do) by a number as well."""
    counts = Counter(node.address for node in nodes)
    numbers: Counter[str] = Counter()
    named = {}
    for node in nodes:
        number = numbers[node.address]
        numbers[node.address] += 1
        named[node.address if counts[node.address] == 1 else f"{node.address}#{number}"] = node
    return named


def _by_rays_names(bundle: Bundle) -> dict[str, float]:
    # Whole devices, so that no two bundles are put onto one.
    held = {"CPU": bundle.cpus, "GPU": float(len(bundle.devices)), "memory": 1e9 * bundle.memory_gb, **bundle.resources}
    held = {name: amount for name, amount in held.items() if amount}
    return held or {"CPU": _LEAST_CPU}


def _is_placed(config: Config) -> bool:
    cluster, placement = config.cluster, config.cluster.placement
    decided = placement.mode == "manual" or placement.strategy != "default"
    tied = placement.env_strategy in ("device-colocate", "node-affinity")
    counted = cluster.buffer_worker_num == "auto" and cluster.ray_address != "local"
    return cluster.any_remote and (decided or tied or counted or cluster.needs != WorkerNeedsConfig())
