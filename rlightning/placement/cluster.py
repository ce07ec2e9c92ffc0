"""What there is: nodes with CPUs, devices, memory and whatever else a cluster counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from pydantic import Field

from rlightning.config import Amount, FiniteSection
from rlightning.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Node:
    """One machine.

    Attributes:
        name: What the cluster calls it.
        cpus: CPUs to give away.
        gpus: Indices of the devices that workers on it may use, as they are counted there.
        memory_gb: Host memory in GB (10^9 bytes); None means that it is not known, and then nobody is refused for it.
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

    def __str__(self) -> str:
        return f"{self.name} ({self.describe()})"

    def describe(self) -> str:
        """Say what it has, in a few words."""
        parts = [f"{self.cpus:g} CPUs", f"{len(self.gpus)} GPUs"]
        parts += [f"{self.memory_gb:g} GB"] if self.memory_gb is not None else []
        parts += [f"{amount:g} {name}" for name, amount in sorted(self.resources.items())]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, in the order in which they are filled and counted."""

    nodes: tuple[Node, ...]

    def describe(self) -> str:
        """Say what there is per node, neighbours of one kind together.

        >>> Cluster((Node("a", 8, (0, 1)), Node("b", 8, (0, 1)), Node("c", 4))).describe()
        'a..b (8 CPUs, 2 GPUs each), c (4 CPUs, 0 GPUs)'
        """
        return describe_nodes(self.nodes)


def describe_nodes(nodes: Sequence[Node]) -> str:
    """Say what nodes have; see ``Cluster.describe``."""
    parts = []
    for _, equal in groupby(nodes, key=lambda node: node.kind):
        first, *others = equal
        parts.append(f"{first.name}..{others[-1].name} ({first.describe()} each)" if others else str(first))
    return ", ".join(parts) if parts else "no node"


def parse_devices(text: str | None, count: int) -> tuple[int, ...]:
    """Give the indices of the devices that a process may use, where a list of them may have been narrowed before.

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


class NodeGroup(FiniteSection):
    """Equal nodes of a described cluster."""

    count: int = Field(1, ge=1)
    """How many nodes."""
    name: str = "n"
    """What their names begin with; a number follows, except where a name is given to a single node."""
    cpus: float = Field(ge=0)
    """CPUs of each."""
    gpus: int | list[int] = Field(0)
    """Devices of each: how many, or the indices of those that may be used."""
    memory_gb: float | None = Field(None, gt=0)
    """Host memory of each in GB; null means that it is not known."""
    gpu_memory_gb: float | None = Field(None, gt=0)
    """Memory of each device in GB; null means that it is not known."""
    resources: dict[str, Amount] = Field(default_factory=dict)
    """Custom resources of each: name -> amount."""


class ClusterDescription(FiniteSection):
    """A cluster that need not exist, as ``rlightning check --cluster`` reads it."""

    nodes: list[NodeGroup] = Field(min_length=1)
    """Groups of equal nodes, in order."""
    network_gb_per_s: float = Field(12.5, gt=0)
    """What the link of each node carries in GB per second, each way; 12.5 is a network of 100 Gbit per second."""

    def build(self) -> Cluster:
        """Write the nodes out, with names.

        Raises:
            ConfigError: If two nodes have one name, or devices are not counted by different numbers from 0 on.
        """
        nodes: list[Node] = []
        problems: list[Problem] = []
        numbers: Counter[str] = Counter()
        for index, group in enumerate(self.nodes):
            gpus = tuple(range(group.gpus)) if isinstance(group.gpus, int) else tuple(group.gpus)
            if (isinstance(group.gpus, int) and group.gpus < 0) or min(gpus, default=0) < 0:
                problems.append(Problem(f"nodes.{index}.gpus", f"must not be negative, got {group.gpus}"))
            if len(set(gpus)) < len(gpus):
                problems.append(Problem(f"nodes.{index}.gpus", f"names a device twice: {group.gpus}"))
            for _ in range(group.count):
                number = numbers[group.name]
                numbers[group.name] += 1
                single = group.count == 1 and "name" in group.model_fields_set
                name = group.name if single else f"{group.name}{number}"
                nodes.append(Node(name, group.cpus, gpus, group.memory_gb, group.gpu_memory_gb, dict(group.resources)))
        twice = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
        if twice:
            problems.append(Problem("nodes", f"{len(twice)} names are given twice, such as {twice[0]!r}"))
        if problems:
            raise ConfigError(problems)
        return Cluster(tuple(nodes))
