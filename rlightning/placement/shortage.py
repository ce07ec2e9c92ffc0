"""Why workers do not fit: what was asked, what is there per node, who found no place, which option to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rlightning.errors import PlacementError
from rlightning.placement.cluster import Node, describe_nodes
from rlightning.placement.request import GRAIN, OPTIONS, ROLES, WorkerRequest, grains
from rlightning.placement.rooms import Need, Room, Unit
from rlightning.placement.seating import Left

_MOST_GROUPS = 8
"""Groups of equal nodes that a message names."""


def refuse(problems: Sequence[str]) -> None:
    """Raise all problems at once; nothing where there are none.

    Raises:
        PlacementError: If there is a problem.
    """
    problems = list(dict.fromkeys(problems))
    if len(problems) == 1:
        raise PlacementError(problems[0])
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise PlacementError(f"{len(problems)} reasons why the workers do not fit:{listed}")


def before(units: Sequence[Unit], nodes: Sequence[Node], where: str = "the cluster") -> list[str]:
    """Say what cannot fit, however places are given away.

    Args:
        units: Workers that sit together.
        nodes: What there is; in a pool the parts of the nodes that it has.
        where: What to call them.
    """
    problems, short = _totals(units, nodes, where)
    seen: set[tuple[Need, str]] = set()
    rooms = [Room(node, place) for place, node in enumerate({node.kind: node for node in nodes}.values())]
    for unit in units:
        key = (unit.need, unit.root.role)
        if key in seen:
            continue
        seen.add(key)
        if unit.impossible:
            problems.append(f"{unit.impossible}: {_advice(_roles([unit]), ['GPU'], unit)}")
        elif all(room.find(unit.need) is None for room in rooms):
            kinds = _short_kinds(unit.need, rooms)
            if short.issuperset(kinds):
                continue  # It is among those who ask for too much together.
            problems.append(
                f"{unit.describe()} {_asks(unit)} of one node, and no node of {where} has that: "
                f"{_listed(nodes)}; {_advice(_roles([unit]), kinds, unit)}"
            )
    return problems


def after(left: Iterable[Left], where: str = "the cluster") -> list[str]:
    """Say who found no place when all others had theirs."""
    problems = []
    for missed in left:
        unit, more = missed.units[0], len(missed.units) - 1
        others = f" and {more} more like it" if more else ""
        kinds = _short_kinds(unit.need, missed.rooms)
        problems.append(
            f"{unit.describe()}{others} found no place in {where}: each {_asks(unit)} of one node, and what is left is "
            f"{_what_is_left(missed.rooms)}; {_advice(_roles([unit]), kinds, unit)}"
        )
    return problems


def advice(requests: Sequence[WorkerRequest], kind: str) -> str:
    """Say which options lower what some workers ask for.

    Args:
        requests: The workers.
        kind: "CPU", "GPU", "memory", or a custom resource.
    """
    return _advice(sorted({request.role for request in requests}, key=ROLES.index), [kind], None)


def _totals(units: Sequence[Unit], nodes: Sequence[Node], where: str) -> tuple[list[str], set[str]]:
    """Say of what more is asked for than there is; and name the kinds."""
    members = [member for unit in units for member in unit.members]
    custom = sorted({name for unit in units for name, _ in unit.need.resources})
    problems: list[str] = []
    short: set[str] = set()
    asked_of: list[tuple[str, int, Callable[[WorkerRequest], float], float | None]] = [
        ("CPU", sum(unit.need.cpus for unit in units), lambda r: r.cpus, sum(node.cpus for node in nodes)),
        ("GPU", sum(sum(unit.need.devices) for unit in units), lambda r: r.gpus, sum(len(node.gpus) for node in nodes)),
        ("memory", sum(unit.need.memory for unit in units), lambda r: r.memory_gb, _memory(nodes)),
    ]
    for name in custom:
        amount = sum(found for unit in units for key, found in unit.need.resources if key == name)
        asked_of.append((name, amount, _asker(name), sum(node.resources.get(name, 0.0) for node in nodes)))
    for kind, asked, amount_of, there in asked_of:
        if there is None or asked <= grains(there):
            continue
        short.add(kind)
        parts = _parts(members, amount_of)
        roles = list(parts)
        label = {"CPU": " CPUs", "GPU": " GPUs", "memory": " GB of memory"}.get(kind, f" of {kind}")
        problems.append(
            f"{asked / GRAIN:g}{label} are asked for ({', '.join(parts.values())}), and {where} has {there:g}: "
            f"{_listed(nodes)}; {_advice(roles, [kind], None)}"
        )
    return problems, short


def _asker(name: str) -> Callable[[WorkerRequest], float]:
    return lambda request: request.resources.get(name, 0.0)


def _memory(nodes: Sequence[Node]) -> float | None:
    known = [node.memory_gb for node in nodes if node.memory_gb is not None]
    return sum(known) if len(known) == len(nodes) else None


def _parts(members: Sequence[WorkerRequest], amount_of: Callable[[WorkerRequest], float]) -> dict[str, str]:
    """Say per role how many workers ask for how much each."""
    parts = {}
    for role in ROLES:
        amounts = sorted(amount_of(member) for member in members if member.role == role and amount_of(member))
        if amounts:
            terms = [f"{len(list(equal))} x {amount:g}" for amount, equal in groupby(amounts)]
            parts[role] = f"{role} {' + '.join(terms)}"
    return parts


def _asks(unit: Unit) -> str:
    need = unit.need
    parts = [f"{need.cpus / GRAIN:g} CPUs"] if need.cpus else []
    whole = sum(amount for amount in need.devices if amount >= GRAIN)
    parts += [f"{whole / GRAIN:g} GPUs"] if whole else []
    parts += [f"{amount / GRAIN:g} of a GPU" for amount in need.devices if amount < GRAIN][:3]
    parts += [f"{need.memory / GRAIN:g} GB of memory"] if need.memory else []
    parts += [f"{amount / GRAIN:g} {name}" for name, amount in need.resources]
    return f"{'asks' if len(unit.members) == 1 else 'ask'} for {' and '.join(parts) or 'nothing'}"


def _short_kinds(need: Need, rooms: Sequence[Room]) -> list[str]:
    """Name what is short where the most is left; all that is asked for where it differs from node to node."""
    if not rooms:
        return ["CPU"]
    lacking = min((room.lacks(need) for room in rooms), key=len)
    return lacking or ["GPU"]


def _roles(units: Sequence[Unit]) -> list[str]:
    return sorted({member.role for unit in units for member in unit.members}, key=ROLES.index)


def _advice(roles: Sequence[str], kinds: Sequence[str], unit: Unit | None) -> str:
    options = []
    for role in roles:
        known = OPTIONS[role]
        options += [known["count"]] if "count" in known and (unit is None or len(unit.members) == 1) else []
        for kind in kinds:
            option = known.get(kind) or (known["need"] if kind not in ("CPU", "GPU") else "")
            options += [option] if option else []
    options = list(dict.fromkeys(options))
    text = f"lower {' or '.join(options)}" if options else "use a larger cluster"
    if unit is not None and len(unit.members) > 1:
        ties = {"env": "cluster.placement.env_strategy", "eval": "cluster.placement.strategy"}
        tied = list(dict.fromkeys(ties[member.role] for member in unit.members if member.beside))
        several = (
            " or raise cluster.eval_worker_num, so that fewer envs share an eval policy," if "env" in roles else ""
        )
        text += f",{several} or choose another {' or '.join(tied)}"
    return text


def _listed(nodes: Sequence[Node]) -> str:
    text = describe_nodes(nodes)
    groups = len(list(groupby(nodes, key=lambda node: node.kind)))
    if groups <= _MOST_GROUPS:
        return text
    kinds: dict[tuple[object, ...], list[Node]] = {}
    for node in nodes:
        kinds.setdefault(node.kind, []).append(node)
    return ", ".join(f"{len(equal)} x ({equal[0].describe()})" for equal in list(kinds.values())[:_MOST_GROUPS]) + (
        f" and {len(kinds) - _MOST_GROUPS} other kinds" if len(kinds) > _MOST_GROUPS else ""
    )


def _what_is_left(rooms: Sequence[Room]) -> str:
    groups = [list(equal) for _, equal in groupby(rooms, key=_state)]
    parts = []
    for equal in groups[:_MOST_GROUPS]:
        first, last = equal[0], equal[-1]
        name = first.node.name if len(equal) == 1 else f"{first.node.name}..{last.node.name}"
        cpus, devices, memory = _state(first)
        each = " each" if len(equal) > 1 else ""
        gpus = f", {' + '.join(f'{free / GRAIN:g}' for free in devices)} GPUs" if devices else ", 0 GPUs"
        gb = f", {memory / GRAIN:g} GB" if memory is not None else ""
        parts.append(f"{name} ({cpus / GRAIN:g} CPUs{gpus}{gb}{each})")
    more = f" and {len(groups) - _MOST_GROUPS} more" if len(groups) > _MOST_GROUPS else ""
    return (", ".join(parts) or "nothing") + more


def _state(room: Room) -> tuple[int, tuple[int, ...], int | None]:
    return room.cpus, tuple(room.free[device] for device in room.devices), room.memory
