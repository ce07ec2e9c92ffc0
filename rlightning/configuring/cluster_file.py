"""A cluster that is described in a file, and need not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from rlightning.config import Amount, FiniteSection
from rlightning.configuring.sources import Sources, display, parse_yaml
from rlightning.configuring.validate import explain
from rlightning.errors import ConfigError, Problem
from rlightning.placement import Cluster, Node


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
        """Build the cluster, with a name for each node.

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


def read_cluster(path: Path) -> tuple[Cluster, ClusterDescription]:
    """Read a described cluster.

    Raises:
        ConfigError: With all that is wrong with the file, by line.
    """
    if not path.is_file():
        raise ConfigError(Problem("--cluster", f"there is no file {path}"))
    parse_yaml(path)
    sources = Sources()
    sources.record_file(path, "")
    tree: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    try:
        description = ClusterDescription.model_validate(tree)
        return description.build(), description
    except ValidationError as error:
        problems: Sequence[Problem] = list(explain(error.errors(), tree, model=ClusterDescription))
    except ConfigError as error:
        problems = error.problems
    raise ConfigError(
        [Problem(one.path, one.message, sources.find(one.path) or display(path), one.suggestion) for one in problems]
    )
