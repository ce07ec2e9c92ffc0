"""What there is: nodes with CPUs, devices, memory and whatever else a cluster counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Node:
    """One machine.

    Attributes:
        name: What the cluster calls it.
        cpus: CPUs to give away.
        gpus: Indices of the devices that workers on it may use, as they are counted there.
        memory_gb: Host memory in GB (10^9 bytes); None means that it is not known, which refuses no worker.
        gpu_memory_gb: Memory of each device in GB; None means that it is not known.
        resources: Custom resources: name -> amount.
    """

    name: str
    cpus: float
    gpus: tuple[int, ...] = ()
    memory_gb: float | None = None
    gpu_memory_gb: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def kind(self) -> tuple[object, ...]:
        """All but the name; nodes of one kind can stand for each other."""
        return self.cpus, self.gpus, self.memory_gb, self.gpu_memory_gb, tuple(sorted(self.resources.items()))

    def amounts(self) -> dict[str, float]:
        """Return what it has of each kind of resource: "CPU", "GPU", "memory" where it is known, and custom ones."""
        memory = {} if self.memory_gb is None else {"memory": self.memory_gb}
        return {"CPU": self.cpus, "GPU": len(self.gpus), **memory, **self.resources}

    def __str__(self) -> str:
        return f"{self.name} ({self.describe()})"

    def describe(self) -> str:
        """Describe what it has in a few words."""
        parts = [f"{self.cpus:g} CPUs", f"{len(self.gpus)} GPUs"]
        parts += [f"{self.memory_gb:g} GB"] if self.memory_gb is not None else []
        parts += [f"{amount:g} {name}" for name, amount in sorted(self.resources.items())]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, in the order in which they are filled and counted."""

    nodes: tuple[Node, ...]

    def describe(self) -> str:
        """Describe what there is per node, neighbours of one kind together.

        >>> Cluster((Node("a", 8, (0, 1)), Node("b", 8, (0, 1)), Node("c", 4))).describe()
        'a..b (8 CPUs, 2 GPUs each), c (4 CPUs, 0 GPUs)'
        """
        return describe_nodes(self.nodes)


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Describe what nodes have; see ``Cluster.describe``."""
    parts = []
    for _, equal in groupby(nodes, key=lambda node: node.kind):
        first, *others = equal
        parts.append(f"{first.name}..{others[-1].name} ({first.describe()} each)" if others else str(first))
    return ", ".join(parts) if parts else "no node"


def parse_devices(text: str | None, count: int) -> tuple[int, ...]:
    """Return the indices of the devices that a process may use, where a list of them may have been narrowed before.

    Args:
        text: Such a list, ``"4,5,6,7"``; None means that all devices are visible. Devices that are not written as
            numbers are counted from 0. As drivers have it, what follows an item that is empty or negative is ignored.
        count: Devices that there are to this process; a list may name more than there are.

    >>> parse_devices("4,5,6,7", 4), parse_devices(None, 2), parse_devices("", 0)
    ((4, 5, 6, 7), (0, 1), ())
    """
    if text is None:
        return tuple(range(count))
    items: list[str] = []
    for item in text.split(","):
        if not item.strip() or item.strip().startswith("-"):
            break
        items.append(item.strip())
    items = list(dict.fromkeys(items))[:count]
    return tuple(map(int, items)) if all(item.isdigit() for item in items) else tuple(range(len(items)))
