"""A run while it is built and while its workers live: its plan, and what its parts share on the cluster."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rlightning.assembly.plan import RunPlan, is_placed, placement_options, plan_run, require_devices, worker_requests
from rlightning.assembly.workers import WorkerPlan, plan_workers
from rlightning.config import Config
from rlightning.engine.recorder import Recorder
from rlightning.observability.run_folder import to_yaml
from rlightning.placement import Cluster, Node, Reservation
from rlightning.placement.capacity import units_of
from rlightning.placement.shortage import before, refuse
from rlightning.runtime.spawn import WorkerPool, WorkerSetup
from rlightning.types import EnvMeta

if TYPE_CHECKING:
    from rlightning.runtime.ray_backend import RayNode
    from rlightning.runtime.ray_backend import Reservation as HeldGroup

PLAN = "plan.yaml"
"""File of a run's folder: every worker's place."""
PLACED = "placed.yaml"
"""File of a run's folder: its configuration with manual pools that give the same places."""

_RAYS_OWN = ("CPU", "GPU", "memory", "object_store_memory")
_LEAST_CPU = 0.0001
"""What a bundle holds at least, since Ray takes none that is empty."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the parts of a run are given besides the configuration.

    Attributes:
        recorder: Receives metrics and checkpoints.
        log_dir: Folder of the log files of all processes.
        plan_dir: Folder that gets the plan of the run's workers.
    """

    recorder: Recorder | None = None
    log_dir: Path | None = None
    plan_dir: Path | None = None


current_context: ContextVar[RunContext] = ContextVar("current_context", default=RunContext())  # noqa: B039 (frozen)
"""Set by ``launch``, so that a script need not pass it on."""

_building: ContextVar[tuple[weakref.ref[Run], ...]] = ContextVar("building", default=())
"""The runs that the builders of this context have begun; see ``Run.of``."""


class Run:
    """One run: its plan, the resources that it holds on the cluster, and the processes that two of its groups share.

    Everything is found through this object, so that runs of equal configurations have nothing in common. ``assemble``
    makes one and hands it to the builders. A builder that is given only a configuration continues the run that another
    builder of the same context began with the same ``Config`` object; see ``of``.

    Args:
        config: The whole configuration.

    Attributes:
        asked: The configuration as it was given.
        context: What the parts are given besides.
        built: Names of the builders that have built their part.
        hosts: Eval policies that the env workers live with, until the policy group has taken them over.
        host_pool: The pool that ends these processes.
        env_meta: Description of the env group, for which the policies are built.
    """

    def __init__(self, config: Config) -> None:
        self.asked = config
        self.context = current_context.get()
        self.built: set[str] = set()
        self.hosts: list[Any] | None = None
        self.host_pool: WorkerPool | None = None
        self.env_meta: EnvMeta | None = None
        self._pools: list[WorkerPool] = []
        self._node_ids: dict[str, str] = {}  # Ray's ids by the names of the plan
        self._is_joined = self._is_over = False
        self._reservation: HeldGroup | None = None

    @classmethod
    def of(cls, config: Config, builder: str, env_meta: EnvMeta | None = None) -> Run:
        """Return the run that a builder continues, or a new one.

        Args:
            config: The configuration object that the other builders of the run were given.
            builder: Name of the builder; a run has one part of each.
            env_meta: The description that ``build_policy_group`` was given; it prefers the run of that env group.
        """
        begun = [run for reference in _building.get() if (run := reference()) is not None and not run._is_over]
        candidates = [run for run in begun if run.asked is config and builder not in run.built]
        candidates.sort(key=lambda run: run.env_meta is None or run.env_meta is not env_meta)
        if candidates:
            return candidates[0]
        run = cls(config)
        _building.set(tuple(map(weakref.ref, [*begun, run])))
        return run

    @cached_property
    def plan(self) -> RunPlan:
        """The plan, computed once; a run whose workers are placed looks at the cluster for it, and stays joined.

        Raises:
            ConfigError: If this machine lacks devices that workers of this process ask for.
            PlacementError: With all that does not fit the cluster.
        """
        workers = plan_workers(self.asked)
        require_devices(workers)
        if not is_placed(self.asked):
            return plan_run(self.asked, workers=workers)
        from rlightning.runtime import ray_backend

        ray_backend.join(self.asked.cluster.ray_address, *_totals(workers))
        self._is_joined = True
        try:
            nodes = ray_backend.list_nodes()
            cluster = running_cluster(nodes)
            self._node_ids = {name: node.node_id for name, node in _names(nodes).items()}
            plan = plan_run(self.asked, cluster, workers)
            assert plan.placement is not None
            if self.context.plan_dir is not None and plan.placement.binding:
                save_plan(self.context.plan_dir, plan, cluster)
        except BaseException:
            self._release()
            raise
        return plan

    # Pools of workers

    @contextmanager
    def pool(self) -> Iterator[WorkerPool]:
        """Make a pool that ends its workers again if not all that is built on them comes to be."""
        config = self.plan.config
        cpus, gpus = _totals(self.plan.workers)
        pool = WorkerPool(
            config.cluster.ray_address,
            WorkerSetup(config.train.torch_threads, config.seed, self.context.log_dir, config.log.level),
            start_timeout_s=config.cluster.start_timeout_s,
            total_cpus=cpus,
            total_gpus=gpus,
            assignment=self,
        )
        self._pools.append(pool)
        try:
            yield pool
        except BaseException:
            self.close(pool)
            raise

    def close(self, *pools: WorkerPool) -> None:
        """End the workers of pools; with the last pool of the run, what it holds on the cluster is given back."""
        with ExitStack() as stack:  # each is stopped, whatever the others raise
            self._pools = [pool for pool in self._pools if pool not in pools]
            if not self._pools:
                stack.callback(self._release)
            for pool in pools:
                stack.callback(pool.stop)

    def close_hosts(self) -> None:
        """End the processes that env workers live in, where no policy group has taken them over."""
        if self.host_pool is not None and self.hosts is not None:
            self.hosts = None
            self.close(self.host_pool)

    # Places on the cluster

    def reserve(self) -> None:
        """Reserve what the plan needs, before the first worker starts.

        Raises:
            PlacementError: If there is not enough.
        """
        from rlightning.runtime import ray_backend

        plan = self.plan
        if plan.placement is None:
            requests = worker_requests(plan.config, plan.workers.all())
            refuse(before(units_of(requests), running_cluster(ray_backend.list_nodes()).nodes))
        elif self._reservation is None and plan.placement.binding:
            held = [(self._node_ids[one.node], _by_rays_names(one)) for one in plan.placement.reservations]
            self._reservation = ray_backend.reserve(held, plan.config.cluster.start_timeout_s)

    def options_of(self, worker: str) -> Mapping[str, Any]:
        """Return the options by which Ray starts a worker in its slot; empty where Ray decides."""
        if self._reservation is None or self.plan.placement is None:
            return {}
        (slot,) = (slot for slot in self.plan.placement.slots if slot.worker == worker)
        return self._reservation.options(slot.reservation)

    def _release(self) -> None:
        self._is_over = True
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None
        if self._is_joined:
            from rlightning.runtime import ray_backend

            self._is_joined = False
            ray_backend.leave()


def save_plan(folder: Path, plan: RunPlan, cluster: Cluster) -> None:
    """Write ``PLAN`` and ``PLACED`` into the folder of a run."""
    assert plan.placement is not None
    (folder / PLAN).write_text(yaml.safe_dump(plan.placement.to_dict(), sort_keys=False), encoding="utf-8")
    tree = plan.config.model_dump()
    tree["cluster"] |= placement_options(plan, cluster)["cluster"]
    header = "# The run again, with every worker in the place that it had: rlightning train FILE\n"
    (folder / PLACED).write_text(header + to_yaml(Config.model_validate(tree)), encoding="utf-8")


def running_cluster(nodes: Sequence[RayNode]) -> Cluster:
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


def _names(nodes: Sequence[RayNode]) -> dict[str, RayNode]:
    """Name nodes by their addresses, and those that share one (as simulated ones do) by a number as well."""
    counts = Counter(node.address for node in nodes)
    numbers: Counter[str] = Counter()
    named = {}
    for node in nodes:
        number = numbers[node.address]
        numbers[node.address] += 1
        named[node.address if counts[node.address] == 1 else f"{node.address}#{number}"] = node
    return named


def _totals(workers: WorkerPlan) -> tuple[float, float]:
    """Sum up the CPUs and GPUs of all workers that are processes of their own."""
    remote = [spec for spec in workers.all() if spec.remote]
    return sum(spec.num_cpus for spec in remote), sum(spec.num_gpus for spec in remote)


def _by_rays_names(held: Reservation) -> dict[str, float]:
    # Whole devices, so that no two of Ray's bundles are put onto one.
    amounts = {"CPU": held.cpus, "GPU": float(len(held.devices)), "memory": 1e9 * held.memory_gb, **held.resources}
    amounts = {name: amount for name, amount in amounts.items() if amount}
    return amounts or {"CPU": _LEAST_CPU}
