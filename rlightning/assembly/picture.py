"""A plan as text: nodes as boxes, devices as cells, and nodes that look alike drawn once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rlightning.placement import Cluster, Node, Plan, Slot
from rlightning.placement.request import grains

_MOST_SPANS = 3
_GAP = "   "


@dataclass(frozen=True, slots=True)
class Folded:
    """A node that is drawn, and those that look like it.

    Attributes:
        node: The node.
        slots: Workers on it.
        alike: The others, in the order of the cluster.
    """

    node: Node
    slots: Sequence[Slot]
    alike: Sequence[Node]


def fold(plan: Plan, cluster: Cluster) -> list[Folded]:
    """Group nodes that have the same and hold the same kinds of workers at the same devices."""
    on: dict[str, list[Slot]] = {node.name: [] for node in cluster.nodes}
    for slot in plan.slots:
        on[slot.node].append(slot)
    looks: dict[tuple[object, ...], list[Node]] = {}
    for node in cluster.nodes:
        kinds = sorted(
            (slot.role, slot.devices, grains(slot.share), grains(slot.cpus), slot.pool, slot.process == slot.worker)
            for slot in on[node.name]
        )
        looks.setdefault((node.kind, tuple(kinds)), []).append(node)
    return [Folded(first, on[first.name], alike) for first, *alike in looks.values()]


def draw(plan: Plan, cluster: Cluster, width: int = 100) -> list[str]:
    """Draw all nodes.

    Args:
        plan: The places of all workers.
        cluster: What there is.
        width: Characters per line; what does not fit is cut off.
    """
    lines: list[str] = []
    for folded in fold(plan, cluster):
        lines += _box(folded, width)
        if folded.alike:
            lines.append(f"  {node_names(folded.alike, cluster)} as {folded.node.name}")
    return lines


def node_names(nodes: Sequence[Node], cluster: Cluster) -> str:
    """Name nodes, neighbours as a range: ``n1..n63``."""
    order = {node.name: place for place, node in enumerate(cluster.nodes)}
    runs: list[list[str]] = []
    for node in nodes:
        if runs and order[node.name] == order[runs[-1][-1]] + 1:
            runs[-1].append(node.name)
        else:
            runs.append([node.name])
    shown = [f"{run[0]}..{run[-1]}" if len(run) > 1 else run[0] for run in runs[:_MOST_SPANS]]
    rest = sum(map(len, runs[_MOST_SPANS:]))
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def spans(numbers: Sequence[int]) -> str:
    """Write numbers in short: ``0-7``, or ``0,4,8,..60``.

    >>> spans([0, 1, 2, 5]), spans([0, 4, 8, 12, 16])
    ('0-2,5', '0,4,8,..16')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(parts) > _MOST_SPANS + 1:
        parts = [*parts[:_MOST_SPANS], f"..{numbers[-1]}"]
    return ",".join(parts)


def describe(slots: Sequence[Slot]) -> str:
    """Write workers of one role in short: ranks, role, share of a device or their process, reservation."""
    ranks = spans([slot.rank for slot in slots])
    name = f"{slots[0].role}[{spans([index(slot) for slot in slots])}]"
    share = f" {slots[0].share:g}" if slots[0].devices else ""
    held = spans(sorted({slot.reservation for slot in slots}))
    inside = sorted({slot.process for slot in slots if slot.process != slot.worker})
    where = f" in {inside[0] if len(inside) == 1 else 'their policies'}" if inside else ""
    return f"#{ranks} {name}{share}{where} r{held}"


def index(slot: Slot) -> int:
    """Return the number of a worker among those of its role."""
    return int(slot.worker.partition("[")[2].removesuffix("]"))


def _box(folded: Folded, width: int) -> list[str]:
    node = folded.node
    used = sum(slot.cpus for slot in folded.slots)
    pools = sorted({slot.pool for slot in folded.slots} - {"all"})
    title = f" {node.name} · {used:g} of {node.cpus:g} CPUs"
    memory = sum(slot.memory_gb for slot in folded.slots)
    title += f" · {memory:g} of {node.memory_gb:g} GB" if memory and node.memory_gb else ""
    title += f" · pool {' and '.join(pools)} " if pools else " "
    rows = [*_device_rows(folded, width - 4), *_other_rows(folded)] or ["nothing"]
    inner = min(width - 4, max(len(title) + 1, *map(len, rows)))
    body = [f"│ {row[:inner]:<{inner}} │" for row in rows]
    return [f"┌─{title[: inner + 1]:─<{inner + 1}}┐", *body, f"└{'─' * (inner + 2)}┘"]


def _device_rows(folded: Folded, width: int) -> list[str]:
    cells = []
    for device in folded.node.gpus:
        users = [slot for slot in folded.slots if device in slot.devices]
        share = sum(grains(slot.share) for slot in users) / grains(1.0)
        head = f"GPU {device}: {share:g}" if users else f"GPU {device}: free"
        cells.append([head, *(f"  {describe(list(equal))}" for _, equal in groupby(users, key=lambda slot: slot.role))])
    if not cells:
        return []
    wide = max(len(line) for cell in cells for line in cell)
    per_row = max(1, min(4, (width + len(_GAP)) // (wide + len(_GAP))))
    rows = []
    for start in range(0, len(cells), per_row):
        row = cells[start : start + per_row]
        rows += [
            _GAP.join(f"{cell[line] if line < len(cell) else '':<{wide}}" for cell in row).rstrip()
            for line in range(max(map(len, row)))
        ]
    return rows


def _other_rows(folded: Folded) -> list[str]:
    others = [slot for slot in folded.slots if not slot.devices]
    return [describe(list(equal)) for _, equal in groupby(others, key=lambda slot: slot.role)]
