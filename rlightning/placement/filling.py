"""Fitting units of workers into capacities: evenly, or on as few nodes as possible."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from rlightning.placement.capacity import Capacity, Need, Unit
from rlightning.placement.plan import Assignment
from rlightning.placement.request import ROLES

LEARNING = ("train", "buffer")
"""Roles of the learners and of what they learn from."""


class Filling:
    """Units that are fitted into the capacities of one pool, those that are hardest to fit first.

    Args:
        capacities: What there is, in order; what is given away is taken of it.
        pool: Name of the pool.
        packed: Use as few nodes as possible, the first ones, instead of all of them evenly.

    Attributes:
        assignments: What was assigned.
        left: Units of one need that did not fit.
    """

    def __init__(self, capacities: Sequence[Capacity], pool: str, *, packed: bool = False) -> None:
        self.capacities, self.pool, self._packed = capacities, pool, packed
        self.assignments: list[Assignment] = []
        self.left: list[Sequence[Unit]] = []

    def place_all(self, units: Sequence[Unit]) -> None:
        """Place learners with all that is tied to them, shards beside them, then the others."""
        self.place_learners(units)
        self.place(unit for unit in units if unit.root.role not in LEARNING)

    def place_learners(self, units: Sequence[Unit]) -> None:
        """Place learners with all that is tied to them, and shards on their nodes as far as there is capacity."""
        self.place(unit for unit in units if unit.root.role == "train")
        homes = {one.node for one in self.assignments if one.request.role == "train"}
        self.place(self.place_beside([unit for unit in units if unit.root.role == "buffer"], homes))

    def place_beside(self, shards: Sequence[Unit], nodes: Iterable[str]) -> list[Unit]:
        """Share shards out over some nodes, neighbours side by side; return those that do not fit there."""
        homes = [capacity for capacity in self.capacities if capacity.node.name in nodes]
        waiting: list[Unit] = []
        for index, unit in enumerate(shards):
            first = index * len(homes) // len(shards)
            for capacity in (*homes[first:], *homes[:first]):
                devices = capacity.find(unit.need)
                if devices is not None:
                    capacity.take(unit.need, devices)
                    self.assignments += unit.assign(capacity.node.name, devices, self.pool)
                    break
            else:
                waiting.append(unit)
        return waiting

    def place(self, units: Iterable[Unit]) -> None:
        """Place units: nodes are chosen first, and then given out in order, so that neighbours stay side by side."""
        for group in _alike(units):
            chosen = self._choose(group)
            for unit, (index, devices) in zip(group, chosen, strict=False):
                self.assignments += unit.assign(self.capacities[index].node.name, devices, self.pool)
            if len(chosen) < len(group):
                self.left.append(group[len(chosen) :])

    def _choose(self, units: Sequence[Unit]) -> list[tuple[int, list[tuple[int, ...]]]]:
        """Choose nodes and devices for units of one need, as far as there is capacity; return indices of nodes."""
        need = units[0].need
        found = {index: one.find(need) for index, one in enumerate(self.capacities)}
        wanted = dict(need.amounts).get("CPU", 0), sum(need.devices)
        before = {index: self.capacities[index].remaining() for index, devices in found.items() if devices is not None}

        def urgency(index: int) -> tuple[float, int, int]:
            if self._packed:
                return 0.0, 0, index
            capacity = self.capacities[index]
            return _filled(wanted, before[index], capacity.remaining()), capacity.workers, index

        heap = [urgency(index) for index in before]
        heapq.heapify(heap)
        chosen: list[tuple[int, list[tuple[int, ...]]]] = []
        for unit in units:
            if not heap:
                break
            index = heap[0][-1]
            devices = found[index]
            assert devices is not None
            self.capacities[index].take(need, devices, len(unit.members))
            chosen.append((index, devices))
            found[index] = self.capacities[index].find(need)
            if found[index] is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, urgency(index))
        return sorted(chosen, key=lambda item: item[0])


def _filled(wanted: tuple[int, int], before: tuple[int, int], now: tuple[int, int]) -> float:
    """Return the part of what was left that one more unit would bring into use: of CPUs, or of devices if more."""
    return max(
        (start - here + more) / start if start else 0.0 for start, here, more in zip(before, now, wanted, strict=True)
    )


def _alike(units: Iterable[Unit]) -> list[list[Unit]]:
    """Group units by what they need and by the role of their root; the hardest to fit first."""
    groups: dict[tuple[Need, str], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.need, unit.root.role), []).append(unit)

    def hardness(key: tuple[Need, str]) -> tuple[object, ...]:
        need, role = key
        custom = dict(need.amounts)
        cpus, memory = custom.pop("CPU", 0), custom.pop("memory", 0)
        scarce = sum(custom.values())
        return -sum(need.devices), -scarce, -memory, -cpus, ROLES.index(role), need.devices, need.amounts

    return [groups[key] for key in sorted(groups, key=hardness)]
