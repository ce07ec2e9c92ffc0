"""Why workers do not fit: what was asked, what is there per node, what found no place, which option to change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rlightning.errors import PlacementError
from rlightning.placement.capacity import UNKNOWN, Capacity, Need, Unit
from rlightning.placement.cluster import Node, describe_nodes
from rlightning.placement.filling import Filling
from rlightning.placement.request import GRAIN, OPTIONS, ROLES, WorkerRequest

_KINDS = ("CPU", "GPU", "memory")
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
    """Describe what cannot fit, whatever the order of placing.

    Args:
        units: Workers that are on one node.
        nodes: What there is; in a pool the parts of the nodes that it has.
        where: What to call them.
    """
    problems, short = _totals(units, nodes, where)
    seen: set[tuple[Need, str]] = set()
    kinds = [Capacity(node, order) for order, node in enumerate({node.kind: node for node in nodes}.values())]
    for unit in units:
        key = (unit.need, unit.root.role)
        if key in seen:
            continue
        seen.add(key)
        if unit.impossible:
            problems.append(f"{unit.impossible}: {_advice(_roles([unit]), ['GPU'], unit)}")
        elif all(capacity.find(unit.need) is None for capacity in kinds):
            lacking = _short_kinds(unit.need, kinds)
            if short.issuperset(lacking):
                continue  # It is among those that ask for too much together.
            problems.append(
                f"{unit.describe()} {_asks(unit)} of one node, and no node of {where} has that: "
                f"{_listed(nodes)}; {_advice(_roles([unit]), lacking, unit)}"
            )
    return problems


def after(filling: Filling, where: str = "the cluster") -> list[str]:
    """Name the units that found no place when all others had theirs."""
    problems = []
    for units in filling.left:
        unit, more = units[0], len(units) - 1
        others = f" and {more} more like it" if more else ""
        kinds = _short_kinds(unit.need, filling.capacities)
        problems.append(
            f"{unit.describe()}{others} found no place in {where}: each {_asks(unit)} of one node, and what is left is "
            f"{_what_is_left(filling.capacities)}; {_advice(_roles([unit]), kinds, unit)}"
        )
    return problems


def advice(requests: Sequence[WorkerRequest], kind: str) -> str:
    """Name the options that lower what some workers ask for.

    Args:
        requests: The workers.
        kind: "CPU", "GPU", "memory", or a custom resource.
    """
    return _advice(sorted({request.role for request in requests}, key=ROLES.index), [kind], None)


def _totals(units: Sequence[Unit], nodes: Sequence[Node], where: str) -> tuple[list[str], set[str]]:
    """Describe the kinds of resources of which more is asked for than there is; and name them."""
    members = [member for unit in units for member in unit.members]
    asked: Counter[str] = Counter({"CPU": 0, "GPU": sum(sum(unit.need.devices) for unit in units), "memory": 0})
    for unit in units:
        asked.update(dict(unit.need.amounts))
    there: Counter[str] = Counter()
    for node in nodes:
        there.update(UNKNOWN | node.amounts())
    problems: list[str] = []
    short: set[str] = set()
    for kind, amount in sorted(asked.items(), key=lambda item: _KINDS.index(item[0]) if item[0] in _KINDS else 3):
        if amount > GRAIN * there[kind] + 0.5:  # what is asked is a whole number of grains
            short.add(kind)
            parts = _parts(members, kind)
            problems.append(
                f"{amount / GRAIN:g}{label(kind, ' of ')} are asked for ({', '.join(parts.values())}), and {where} has "
                f"{there[kind]:g}: {_listed(nodes)}; {_advice(list(parts), [kind], None)}"
            )
    return problems, short


def label(kind: str, custom: str = " ") -> str:
    """Return what stands behind the amount of a kind of resource in a sentence."""
    return {"CPU": " CPUs", "GPU": " GPUs", "memory": " GB of memory"}.get(kind, f"{custom}{kind}")


def _parts(members: Sequence[WorkerRequest], kind: str) -> dict[str, str]:
    """Describe per role how many workers ask for how much of a kind each."""
    parts = {}
    for role in ROLES:
        amounts = sorted(amount for one in members if one.role == role and (amount := one.amounts().get(kind)))
        if amounts:
            terms = [f"{len(list(equal))} x {amount:g}" for amount, equal in groupby(amounts)]
            parts[role] = f"{role} {' + '.join(terms)}"
    return parts


def _asks(unit: Unit) -> str:
    amounts = dict(unit.need.amounts)
    parts = [f"{amounts.pop('CPU') / GRAIN:g} CPUs"] if "CPU" in amounts else []
    whole = sum(amount for amount in unit.need.devices if amount >= GRAIN)
    parts += [f"{whole / GRAIN:g} GPUs"] if whole else []
    parts += [f"{amount / GRAIN:g} of a GPU" for amount in unit.need.devices if amount < GRAIN][:3]
    parts += [f"{amounts.pop('memory') / GRAIN:g} GB of memory"] if "memory" in amounts else []
    parts += [f"{amount / GRAIN:g} {name}" for name, amount in amounts.items()]
    return f"{'asks' if len(unit.members) == 1 else 'ask'} for {' and '.join(parts) or 'nothing'}"


def _short_kinds(need: Need, capacities: Sequence[Capacity]) -> list[str]:
    """Name what is short where the most is left; all that is asked for where it differs from node to node."""
    if not capacities:
        return ["CPU"]
    lacking = min((capacity.lacks(need) for capacity in capacities), key=len)
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


def _what_is_left(capacities: Sequence[Capacity]) -> str:
    groups = [list(equal) for _, equal in groupby(capacities, key=_state)]
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


def _state(capacity: Capacity) -> tuple[int, tuple[int, ...], int | None]:
    return capacity.cpus, tuple(capacity.free[device] for device in capacity.devices), capacity.left.get("memory")
