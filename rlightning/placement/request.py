"""What is asked: one request per worker, and which workers have to be beside which others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rlightning.errors import PlacementError

ROLES = ("train", "eval", "buffer", "env", "eval_env")
"""Roles of workers, in the order of ranks."""

Tie = Literal["process", "device", "node"]
"""How close a worker is to the one that it is tied to."""

OPTIONS: Mapping[str, Mapping[str, str]] = {
    "train": {
        "count": "cluster.train_worker_num",
        "CPU": "policy.train_num_cpus",
        "GPU": "policy.train_num_gpus",
        "need": "cluster.needs.train",
    },
    "eval": {
        "count": "cluster.eval_worker_num",
        "CPU": "policy.eval_num_cpus",
        "GPU": "policy.eval_num_gpus",
        "need": "cluster.needs.eval",
    },
    "buffer": {"count": "cluster.buffer_worker_num", "need": "cluster.needs.buffer"},
    "env": {"count": "env.num_workers", "CPU": "env.num_cpus", "GPU": "env.num_gpus", "need": "cluster.needs.env"},
    "eval_env": {"CPU": "env.num_cpus", "GPU": "env.num_gpus", "need": "cluster.needs.eval_env"},
}
"""Role -> what -> the option that decides on it."""

GRAIN = 10_000
"""Parts of a CPU or device that are told apart; Ray counts as finely."""


def grains(amount: float) -> int:
    """Count an amount in grains, so that sums are exact.

    >>> 3 * grains(0.1) == grains(0.3)
    True
    """
    return round(amount * GRAIN)


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """One worker that is a process of its own, or lives in that of another one.

    Attributes:
        role: One of ``ROLES``.
        index: Its number among those of its role.
        cpus: CPUs.
        gpus: Devices: a whole number, or a part of one.
        memory_gb: Host memory in GB.
        resources: Custom resources: name -> amount.
        beside: Name of the worker that it is tied to; empty means that it is free.
        tie: How close it is to that one.
        name: Role and index: ``env[3]``.
    """

    role: str
    index: int
    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    beside: str = ""
    tie: Tie = "node"
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.role}[{self.index}]")

    def amounts(self) -> dict[str, float]:
        """Return what it asks for of each kind of resource."""
        return {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_gb, **self.resources}

    def describe(self) -> str:
        """Describe what it asks for in a few words.

        >>> WorkerRequest("eval", 0, cpus=2, gpus=0.5).describe()
        '2 CPUs and 0.5 GPUs'
        """
        parts = [f"{self.cpus:g} CPUs"] + ([f"{self.gpus:g} GPUs"] if self.gpus else [])
        parts += [f"{self.memory_gb:g} GB of memory"] if self.memory_gb else []
        parts += [f"{amount:g} {name}" for name, amount in sorted(self.resources.items())]
        return " and ".join(parts)


def by_rank(requests: Sequence[WorkerRequest]) -> list[WorkerRequest]:
    """Sort by role and index."""
    return sorted(requests, key=lambda request: (ROLES.index(request.role), request.index))


ENV_TIES: Mapping[str, Tie | None] = {
    "default": None,
    "node-affinity": "node",
    "device-colocate": "device",
    "process-colocate": "process",
}
"""``cluster.placement.env_strategy`` -> how close env workers are to eval policies; None where they are not tied."""


def tie_envs(requests: Sequence[WorkerRequest], tie: Tie) -> list[WorkerRequest]:
    """Tie each env worker to its eval policy: env worker i to eval policy i modulo their number, as they are routed.

    Without eval policies among the requests none is tied: then both are in the controller's process, or one is.

    Args:
        requests: All workers.
        tie: How close they are.

    Raises:
        PlacementError: If a share of a device is missing.
    """
    evals = [request for request in by_rank(requests) if request.role == "eval"]
    envs = [request for request in by_rank(requests) if request.role == "env"]
    if not evals or not envs:
        return list(requests)
    if tie == "device":
        lacking = {request.role for request in (*evals, *envs) if not request.gpus}
        if lacking == {"eval", "env"} and not any(request.gpus for request in (*evals, *envs)):
            tie = "node"  # The device that they share is the CPU.
        elif lacking:
            role = min(lacking)
            raise PlacementError(
                f"{role} workers have no share of a device, and cluster.placement.env_strategy is device-colocate: set "
                f"{OPTIONS[role]['GPU']}, such as to 0.1, or cluster.placement.env_strategy to node-affinity"
            )
    return [
        replace(request, beside=evals[request.index % len(evals)].name, tie=tie) if request.role == "env" else request
        for request in requests
    ]


def tie_evals(requests: Sequence[WorkerRequest]) -> list[WorkerRequest]:
    """Tie each eval policy to a train policy: by the device where they and their envs fit on it, else by the node.

    Eval policy i goes with train policy i; where there are more of them, neighbours go with the same one.
    """
    trains = [request for request in by_rank(requests) if request.role == "train"]
    evals = [request for request in by_rank(requests) if request.role == "eval"]
    if not trains or not evals:
        return list(requests)
    partners = {
        request.name: trains[place * len(trains) // len(evals) if len(evals) > len(trains) else place]
        for place, request in enumerate(evals)
    }
    shares: dict[str, int] = {request.name: grains(request.gpus) for request in evals}
    for request in requests:
        if request.role == "env" and request.beside and request.tie != "node":
            shares[request.beside] += grains(request.gpus)
    wanted: dict[str, int] = {request.name: grains(request.gpus) for request in trains}
    for name, partner in partners.items():
        wanted[partner.name] += shares[name]

    def tie(request: WorkerRequest) -> Tie:
        partner = partners[request.name]
        return "device" if request.gpus and partner.gpus and wanted[partner.name] <= GRAIN else "node"

    return [
        replace(request, beside=partners[request.name].name, tie=tie(request)) if request.role == "eval" else request
        for request in requests
    ]


def shard_count(train_nodes: Sequence[str], num_env_workers: int) -> int:
    """Count the shards that ``cluster.buffer_worker_num: auto`` means.

    Args:
        train_nodes: The node of each train policy.
        num_env_workers: Env workers.

    Returns:
        One per node that has train policies, at most one per env worker, at least one.

    >>> shard_count(["a", "a", "b", "b"], 8), shard_count(["a", "b"], 1), shard_count([], 4)
    (2, 1, 1)
    """
    return max(1, min(len(set(train_nodes)), num_env_workers))
