"""Pools for manual placement: which nodes and devices they have, and the numbers of their places."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlightning.config import PoolConfig
from rlightning.errors import nearest_name
from rlightning.placement.cluster import Cluster, Node
from rlightning.placement.plan import Plan, Slot
from rlightning.placement.request import ROLES

ALL = "all"
"""Text of a component whose workers are spread over all places of the pool."""

OPTION = "cluster.resource_pool"
"""Where pools are written."""
_ITEM = re.compile(r"\d+(-\d+)?(\+\d+(-\d+)?)*")


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool with its places in order.

    Attributes:
        name: Its name.
        parts: What it has of each node, as a node with fewer devices and CPUs.
        places: For each place the index of a part, and the device; None where the place is a CPU.
    """

    name: str
    parts: tuple[Node, ...]
    places: tuple[tuple[int, int | None], ...]

    def describe(self) -> str:
        """Return how many places it has, and why."""
        parts = [f"{part.name} has {_count(part)} {'GPUs' if part.gpus else 'CPUs'}" for part in self.parts[:4]]
        more = f" and {len(self.parts) - 4} more nodes" if len(self.parts) > 4 else ""
        return f"pool {self.name!r} has places 0 to {len(self.places) - 1}: {', '.join(parts)}{more}"


def parse_places(text: str) -> list[list[int]]:
    """Read numbers of places; a comma separates items, a plus joins what belongs to one item.

    >>> parse_places("0-2, 8"), parse_places("0+2, 1+3")
    ([[0, 1, 2], [8]], [[0, 2], [1, 3]])

    Raises:
        ValueError: If it cannot be read; says what to write.
    """
    items = []
    for item in (item.strip().replace(" ", "") for item in text.split(",")):
        if not _ITEM.fullmatch(item):
            raise ValueError(f"{item!r} is no range of places: write '0-7, 8-15', or '{ALL}'")
        numbers: list[int] = []
        for span in item.split("+"):
            first, _, last = span.partition("-")
            if int(last or first) < int(first):
                raise ValueError(f"{span!r} goes backwards: write '{last}-{first}'")
            numbers += range(int(first), int(last or first) + 1)
        items.append(numbers)
    return items


def share_out(items: Sequence[Sequence[int]], count: int) -> list[tuple[int, ...]]:
    """Return the places of each worker.

    With as many items as workers each worker has one item. Otherwise the numbers of all items are one row: several
    neighbours for each worker, or each number for several workers.

    >>> share_out([[0, 1], [2, 3]], 2), share_out([[0, 1]], 4)
    ([(0, 1), (2, 3)], [(0,), (0,), (1,), (1,)])

    Raises:
        ValueError: If neither number is a multiple of the other.
    """
    if len(items) == count:
        return [tuple(item) for item in items]
    row = [number for item in items for number in item]
    if len(row) % count == 0:
        each = len(row) // count
        return [tuple(row[place * each : (place + 1) * each]) for place in range(count)]
    if count % len(row) == 0:
        return [(row[place * len(row) // count],) for place in range(count)]
    raise ValueError(f"{len(row)} places cannot be shared out evenly over {count} workers")


def resolve_pools(cluster: Cluster, configs: Mapping[str, PoolConfig]) -> tuple[dict[str, Pool], list[str]]:
    """Find the nodes and devices of all pools, in an order that does not depend on that of the mapping.

    Returns:
        The pools that could be found, and what is wrong.
    """
    problems = [
        f"{OPTION}.{name}.shares_with names {other!r}, and there is no such pool"
        for name, config in sorted(configs.items())
        for other in config.shares_with
        if other not in configs
    ]
    nodes_of = _choose_nodes(cluster, configs, problems)
    pools_on: dict[str, list[str]] = {}
    for name, nodes in sorted(nodes_of.items()):
        for node in nodes:
            pools_on.setdefault(node.name, []).append(name)
    parts: dict[tuple[str, str], Node] = {}
    for node in cluster.nodes:
        here = pools_on.get(node.name, [])
        unclear = _overlap(node, here, configs)
        problems += unclear
        for name in [] if unclear else here:
            others = [parts[other, node.name] for other in here if other < name and not _sharing(configs, name, other)]
            parts[name, node.name], wrong = _take_part(node, name, configs[name], others)
            problems += wrong
    pools = {}
    for name, nodes in nodes_of.items():
        found = tuple(parts[name, node.name] for node in nodes if (name, node.name) in parts)
        places = [(index, device) for index, part in enumerate(found) for device in part.gpus or [None] * _count(part)]
        pools[name] = Pool(name, found, tuple(places))
    return pools, problems


def _overlap(node: Node, here: Sequence[str], configs: Mapping[str, PoolConfig]) -> list[str]:
    """Describe what is wrong where pools that are not meant to overlap have one node, and not how much of it."""
    pairs = [(one, two) for one in here for two in here if one < two and not _sharing(configs, one, two)]
    unclear = sorted({name for pair in pairs for name in pair if not _bounded(configs[name], node)})
    if not unclear:
        return []
    together = ", ".join(sorted({name for pair in pairs for name in pair}))
    return [
        f"node {node.name} is in the pools {together}: say gpus_per_node and cpus_per_node in each of them, or "
        f"shares_with in one if they are meant to overlap"
    ]


def _take_part(node: Node, name: str, config: PoolConfig, others: Sequence[Node]) -> tuple[Node, list[str]]:
    """Return what a pool asks for of what other pools leave of a node, and what is wrong."""
    gone = {device for part in others for device in part.gpus}
    free = [device for device in node.gpus if device not in gone]
    count = len(node.gpus) if config.gpus_per_node is None else config.gpus_per_node
    cpus = node.cpus if config.cpus_per_node is None else config.cpus_per_node
    problems = [
        f"{OPTION}.{name}.{option} asks for {wanted:g} {kind} of {node}, of which {left:g} are left by other pools: "
        f"lower it"
        for option, kind, wanted, left in (
            ("gpus_per_node", "GPUs", count, len(free)),
            ("cpus_per_node", "CPUs", cpus, node.cpus - sum(part.cpus for part in others)),
        )
        if wanted > left
    ]
    return replace(node, gpus=tuple(free[:count]), cpus=min(cpus, node.cpus)), problems


def as_pools(plan: Plan, cluster: Cluster) -> dict[str, Any]:
    """Write a plan as one pool, which as ``cluster.resource_pool`` gives every worker the same place again."""
    used = {slot.node for slot in plan.slots}
    nodes = [node for node in cluster.nodes if node.name in used]
    place_of: dict[tuple[str, int | None], int] = {}
    count = 0
    for node in nodes:
        place_of[node.name, None] = count
        place_of |= {(node.name, device): count + index for index, device in enumerate(node.gpus)}
        count += _count(node)
    components = {
        role: _write_places([_places(slot, place_of) for slot in slots]) for role in ROLES if (slots := plan.of(role))
    }
    return {"run": {"node_ids": [node.name for node in nodes], "components": components}} if nodes else {}


def _choose_nodes(cluster: Cluster, configs: Mapping[str, PoolConfig], problems: list[str]) -> dict[str, list[Node]]:
    by_name = {node.name: node for node in cluster.nodes}
    chosen: dict[str, list[Node]] = {}
    for name, config in sorted(configs.items()):
        if not config.node_ids:
            continue
        unknown = [node for node in config.node_ids if node not in by_name]
        for node in unknown:
            near = nearest_name(node, by_name)
            hint = f"; did you mean {near!r}?" if near else ""
            problems.append(
                f"{OPTION}.{name}.node_ids names {node!r}, and the cluster has no such node: {cluster.describe()}{hint}"
            )
        if len(set(config.node_ids)) < len(config.node_ids):
            problems.append(f"{OPTION}.{name}.node_ids names a node twice: {', '.join(config.node_ids)}")
        if config.num_nodes is not None and config.num_nodes != len(config.node_ids):
            problems.append(
                f"{OPTION}.{name} asks for num_nodes={config.num_nodes} and names {len(config.node_ids)} in node_ids: "
                f"remove num_nodes, or name as many"
            )
        if not unknown:
            chosen[name] = [by_name[node] for node in dict.fromkeys(config.node_ids)]
    named = {node for config in configs.values() for node in config.node_ids}
    alone = [name for name, config in sorted(configs.items()) if not config.node_ids and not config.shares_with]
    sharing = [name for name, config in sorted(configs.items()) if not config.node_ids and config.shares_with]
    for name in [*alone, *sharing]:
        config = configs[name]
        hosts = {node.name for other in config.shares_with for node in chosen.get(other, ())}
        free = [
            node
            for node in cluster.nodes
            if (node.name in hosts if config.shares_with else node.name not in named)
            and len(node.gpus) >= (config.gpus_per_node or 0)
            and node.cpus >= (config.cpus_per_node or 0)
        ]
        count = len(free) if config.num_nodes is None else config.num_nodes
        if count > len(free) or not free:
            wanted = f" with {config.gpus_per_node} GPUs" if config.gpus_per_node else ""
            problems.append(
                f"{OPTION}.{name} asks for {max(count, 1)} nodes{wanted}, and {len(free)} are left that no other pool "
                f"has: {cluster.describe()}; lower its num_nodes, or that of another pool"
            )
            continue
        chosen[name] = free[:count]
        named |= {node.name for node in chosen[name]}
    return chosen


def _sharing(configs: Mapping[str, PoolConfig], name: str, other: str) -> bool:
    return other in configs[name].shares_with or name in configs[other].shares_with


def _bounded(config: PoolConfig, node: Node) -> bool:
    return config.cpus_per_node is not None and (config.gpus_per_node is not None or not node.gpus)


def _count(part: Node) -> int:
    """Count the places on a node or a part of it."""
    return len(part.gpus) or max(1, int(part.cpus))


def _places(slot: Slot, place_of: Mapping[tuple[str, int | None], int]) -> list[int]:
    return [place_of[slot.node, device] for device in slot.devices] or [place_of[slot.node, None]]


def _write_places(places: Sequence[Sequence[int]]) -> str:
    """Write the places of workers so that ``share_out`` gives them back.

    >>> _write_places([[0], [1], [2]]), _write_places([[0], [0], [1], [1]]), _write_places([[0, 1], [2, 4]])
    ('0-2', '0-1', '0-1, 2+4')
    """
    if any(len(place) > 1 for place in places):
        return ", ".join("+".join(_spans(place)) for place in places)
    row = [place[0] for place in places]
    once = list(dict.fromkeys(row))
    if row == [number for number in once for _ in range(len(row) // len(once))]:
        return ", ".join(_spans(once))
    return ", ".join(map(str, row))


def _spans(numbers: Sequence[int]) -> list[str]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return [f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans]
