"""Fitting units of workers into the rooms of nodes: evenly, or on as few nodes as possible."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlightning.placement.plan import Seat
from rlightning.placement.request import ROLES
from rlightning.placement.rooms import Need, Room, Unit

LEARNING = ("train", "buffer")
"""Roles of those who learn and of what they learn from."""


@dataclass(frozen=True, slots=True)
class Left:
    """Units that found no place.

    Attributes:
        units: The units, all of one need.
        rooms: Where they were to go.
    """

    units: Sequence[Unit]
    rooms: Sequence[Room]


def spread(units: Sequence[Unit], rooms: Sequence[Room], pool: str) -> tuple[list[Seat], list[Left]]:
    """Give units of one need places so that all nodes are filled evenly, in relation to what was left on them.

    Neighbours get neighbouring places: nodes are chosen first, and then given out in order.
    """
    need = units[0].need
    found = {place: devices for place, room in enumerate(rooms) if (devices := room.find(need)) is not None}
    left = {place: rooms[place].left() for place in found}
    heap = [(_filled(need, left[place], left[place]), rooms[place].workers, place) for place in found]
    heapq.heapify(heap)
    chosen: dict[int, list[list[tuple[int, ...]]]] = {}
    for unit in units:
        if not heap:
            break
        place = heap[0][2]
        room = rooms[place]
        room.take(need, found[place], len(unit.members))
        chosen.setdefault(place, []).append(found[place])
        devices = room.find(need)
        if devices is None:
            heapq.heappop(heap)
        else:
            found[place] = devices
            heapq.heapreplace(heap, (_filled(need, left[place], room.left()), room.workers, place))
    return _hand_out(units, rooms, chosen, pool)


def _filled(need: Need, before: tuple[int, int], now: tuple[int, int]) -> float:
    """Give the part of what was left on a node that is in use with one more unit: of CPUs, or of devices if more."""
    wanted = (need.cpus, sum(need.devices))
    return max(
        (start - here + more) / start if start else 0.0 for start, here, more in zip(before, now, wanted, strict=True)
    )


def pack(units: Sequence[Unit], rooms: Sequence[Room], pool: str) -> tuple[list[Seat], list[Left]]:
    """Give units of one need places so that as few nodes as possible are in use, the first ones."""
    need = units[0].need
    chosen: dict[int, list[list[tuple[int, ...]]]] = {}
    placed = 0
    for place, room in enumerate(rooms):
        while placed < len(units) and (devices := room.find(need)) is not None:
            room.take(need, devices, len(units[placed].members))
            chosen.setdefault(place, []).append(devices)
            placed += 1
    return _hand_out(units, rooms, chosen, pool)


def place_all(
    units: Iterable[Unit], rooms: Sequence[Room], pool: str, *, packed: bool = False
) -> tuple[list[Seat], list[Left]]:
    """Give all units places, those that are hardest to fit in first.

    Args:
        units: Workers that sit together.
        rooms: Where there is room, in order; what is given away is taken of them.
        pool: Name of the pool.
        packed: Use as few nodes as possible, instead of all of them evenly.

    Returns:
        The seats, and the units that found none.
    """
    seats: list[Seat] = []
    left: list[Left] = []
    for group in _alike(units):
        found, missed = (pack if packed else spread)(group, rooms, pool)
        seats += found
        left += missed
    return seats, left


def spread_with_learners_first(
    units: Sequence[Unit], rooms: Sequence[Room], pool: str
) -> tuple[list[Seat], list[Left]]:
    """Spread units over rooms: learners and all that is tied to them, shards beside them, then the others."""
    seats, left = learners_and_shards(units, rooms, pool, packed=False)
    found, missed = place_all((unit for unit in units if unit.root.role not in LEARNING), rooms, pool)
    return [*seats, *found], [*left, *missed]


def learners_and_shards(
    units: Sequence[Unit], rooms: Sequence[Room], pool: str, *, packed: bool
) -> tuple[list[Seat], list[Left]]:
    """Place learners, all that is tied to them, and shards on the nodes of the learners as far as there is room.

    Args:
        units: Workers that sit together; the others among them are left alone.
        rooms: Where there is room.
        pool: Name of the pool.
        packed: Use as few nodes as possible, instead of all of them evenly.
    """
    learners = [unit for unit in units if unit.root.role == "train"]
    shards = [unit for unit in units if unit.root.role == "buffer"]
    seats, left = place_all(learners, rooms, pool, packed=packed)
    homes = {seat.node for seat in seats if seat.request.role == "train"}
    beside, waiting = beside_learners(shards, [room for room in rooms if room.node.name in homes], pool)
    found, missed = place_all(waiting, rooms, pool, packed=packed)
    return [*seats, *beside, *found], [*left, *missed]


def beside_learners(shards: Sequence[Unit], homes: Sequence[Room], pool: str) -> tuple[list[Seat], list[Unit]]:
    """Share shards out over the nodes of the learners, neighbours side by side, as far as there is room.

    Returns:
        The seats, and the shards for which there is no room.
    """
    seats: list[Seat] = []
    waiting: list[Unit] = []
    for place, unit in enumerate(shards):
        first = place * len(homes) // len(shards)
        for room in (*homes[first:], *homes[:first]):
            devices = room.find(unit.need)
            if devices is not None:
                room.take(unit.need, devices)
                seats += unit.seats(room.node.name, devices, pool)
                break
        else:
            waiting.append(unit)
    return seats, waiting


def _alike(units: Iterable[Unit]) -> list[list[Unit]]:
    """Group units by what they need and who leads them; the hardest to fit in first."""
    groups: dict[tuple[Need, str], list[Unit]] = {}
    for unit in units:
        groups.setdefault((unit.need, unit.root.role), []).append(unit)

    def hardness(key: tuple[Need, str]) -> tuple[object, ...]:
        need, role = key
        scarce = sum(amount for _, amount in need.resources)
        return -sum(need.devices), -scarce, -need.memory, -need.cpus, ROLES.index(role), need.devices, need.resources

    return [groups[key] for key in sorted(groups, key=hardness)]


def _hand_out(
    units: Sequence[Unit], rooms: Sequence[Room], chosen: Mapping[int, Sequence[Sequence[tuple[int, ...]]]], pool: str
) -> tuple[list[Seat], list[Left]]:
    places = [(place, devices) for place in sorted(chosen) for devices in chosen[place]]
    seats = [
        seat
        for unit, (place, devices) in zip(units, places, strict=False)
        for seat in unit.seats(rooms[place].node.name, devices, pool)
    ]
    left = [Left(units[len(places) :], rooms)] if len(places) < len(units) else []
    return seats, left
