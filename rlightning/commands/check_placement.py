"""What ``rlightning check`` says of who sits where, on this machine or on a cluster that is described."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlightning.assembly.workers import plan_workers
from rlightning.commands.picture import draw, fold, index, node_names, spans
from rlightning.commands.scale import Estimate, Load, Rates, estimates, moves
from rlightning.config import Config
from rlightning.configuring.sources import Sources, display, parse_yaml
from rlightning.configuring.validate import explain
from rlightning.device import VISIBLE_DEVICES, available_gpus, gpu_memory_gb
from rlightning.errors import ConfigError, Problem
from rlightning.placement import Cluster, Node, Plan, Slot
from rlightning.placement.cluster import ClusterDescription, parse_devices
from rlightning.policy.group_weights import uses_node_memory, weight_carrier
from rlightning.weights.traffic import WeightRoute, busiest, paired_routes, weight_routes

CONTEXT_GB = 0.5
"""GB of a device that each process on it takes for itself, before any tensor; an assumption."""
LOCAL = "this process"
"""Where policies live that are no processes of their own."""
_MOST_ROUTES = 12


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that the policies and the buffer of a run are known to need.

    Attributes:
        train: Of one train policy: parameters, gradients, states of the optimizer, buffers.
        eval: Of one eval policy, the copies that wait for their turn among them.
        shard: Of all shards together.
        shared: Of each node with eval policies: copies in shared memory.
        handed_on: Of each node with policies of both roles: the copy by which they hand weights on.
    """

    train: int
    eval: int
    shard: int
    shared: int
    handed_on: int


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


def machine_at_hand(config: Config) -> Cluster:
    """Describe this machine as a Ray of the run's own would: with as many CPUs as the workers ask for at least."""
    remote = [spec for spec in plan_workers(config).all() if spec.remote]
    cpus = max(os.cpu_count() or 1, math.ceil(sum(spec.num_cpus for spec in remote)))
    gpus = parse_devices(os.environ.get(VISIBLE_DEVICES), available_gpus())
    return Cluster((Node("here", cpus, gpus, gpu_memory_gb=gpu_memory_gb()),))


def policy_nodes(config: Config, plan: Plan) -> dict[str, dict[str, list[str]]]:
    """Say which policies live on which node, in the form of ``PolicyGroup.placement_info``."""
    placed = {slot.worker: slot.node for slot in plan.slots}
    workers = plan_workers(config)
    found: dict[str, dict[str, list[str]]] = {}
    for kind, specs in (("train_policies", workers.train), ("eval_policies", workers.eval)):
        for spec in specs:
            node = placed.get(spec.name, LOCAL)
            found.setdefault(node, {"train_policies": [], "eval_policies": []})[kind].append(spec.name)
    return found


def routes_of(config: Config, plan: Plan, num_bytes: int) -> list[WeightRoute]:
    """List the ways of weights over a plan."""
    nodes = policy_nodes(config, plan)
    if config.cluster.is_colocated:
        at = {name: node for node, held in nodes.items() for names in held.values() for name in names}
        pairs = [(f"train[{place}]", f"eval[{place}]") for place in range(config.cluster.eval_worker_num)]
        return paired_routes([(one, at[one], two, at[two]) for one, two in pairs], num_bytes)
    strategy = config.policy.weight_buffer.buffer_strategy
    broadcast, by_memory = weight_carrier(config.policy) == "collective", uses_node_memory(config.policy)
    return weight_routes(nodes, strategy, num_bytes, broadcast=broadcast, node_memory=by_memory, local=LOCAL)


def memory_of(config: Config, weights: int, parameters: int, transition: int) -> Memory:
    """Count what is known before a run; activations, simulators and libraries come on top.

    Args:
        config: The configuration.
        weights: Bytes of parameters and buffers.
        parameters: Trainable numbers, of 4 bytes each.
        transition: Bytes of one row of the data buffer.
    """
    optim, waiting = config.policy.optim_cfg, config.policy.weight_buffer
    states = 2 if optim.name in ("adam", "adamw") else 1 if optim.momentum else 0
    double = waiting.buffer_strategy == "Double" and waiting.type == "WeightBuffer"
    are_processes = config.cluster.remote_train and config.cluster.remote_eval
    is_copied = uses_node_memory(config.policy) and waiting.buffer_strategy != "Shared"
    steps = config.buffer.capacity or config.train.max_rollout_steps
    return Memory(
        train=weights + (1 + states) * 4 * parameters,
        eval=weights * (3 if double else 1),
        shard=steps * config.num_envs * transition,
        shared=2 * weights if waiting.buffer_strategy in ("Shared", "Sharded") else 0,
        handed_on=weights if are_processes and is_copied else 0,
    )


def device_memory(slots: Sequence[Slot], device: int, memory: Memory) -> float:
    """Estimate the GB in use on one device of a node.

    Args:
        slots: Who sits on the node.
        device: Index of the device.
        memory: What policies need.
    """
    users = [slot for slot in slots if device in slot.devices]
    policies = sum({"train": memory.train, "eval": memory.eval}.get(slot.role, 0) for slot in users)
    return policies / 1e9 + CONTEXT_GB * len({slot.process for slot in users})


def host_memory(slots: Sequence[Slot], num_shards: int, memory: Memory) -> float:
    """Estimate the GB of host memory that data and weights take on a node; processes come on top."""
    roles = {slot.role for slot in slots}
    total = memory.shared * ("eval" in roles) + memory.handed_on * ({"train", "eval"} <= roles)
    for slot in slots:
        if slot.role == "buffer":
            total += memory.shard // max(1, num_shards)
        elif slot.role in ("train", "eval") and not slot.devices:
            total += memory.train if slot.role == "train" else memory.eval
    return total / 1e9


def load_of(config: Config, plan: Plan, weights: int, parameters: int, step_bytes: int, passes: int) -> Load:
    """Sum up what each node of a plan does, for an estimate of more nodes."""
    nodes = {role: {slot.node for slot in plan.of(role)} or {LOCAL} for role in ("train", "eval", "env")}
    learning, acting = nodes["train"], nodes["eval"] | nodes["env"]
    mixed = bool(learning & acting)
    shards = config.cluster.buffer_worker_num
    num_shards = 1 if shards == "auto" else shards
    rows = config.train.max_rollout_steps * config.num_envs
    return Load(
        learning_share=1.0 if mixed else len(learning) / len(learning | acting),
        trains=config.cluster.train_worker_num / len(learning | acting if mixed else learning),
        shards=num_shards / len(learning | acting if mixed else learning),
        evals=config.cluster.eval_worker_num / len(learning | acting if mixed else acting),
        envs=config.num_env_workers / len(learning | acting if mixed else acting),
        steps=config.train.max_rollout_steps,
        step_bytes=step_bytes * config.num_envs // config.num_env_workers,
        weight_bytes=weights,
        gradient_bytes=4 * parameters,
        gradient_steps=passes * max(1, -(-rows // config.train.batch_size)),
        by_fragment=config.cluster.placement.env_strategy == "process-colocate",
        broadcast=weight_carrier(config.policy) == "collective",
    )


def show_placement(
    config: Config, plan: Plan, cluster: Cluster, memory: Memory, load: Load, rates: Rates, console: Console
) -> None:
    """Print who sits where, the ways of weights, memory, and what more nodes would cost."""
    console.print("\n[bold]who sits where[/]" + ("" if plan.binding else ", for example: Ray decides") + "\n")
    console.print(_slots_table(plan, cluster))
    console.print()
    for line in draw(plan, cluster, console.width):
        console.print(line, markup=False, soft_wrap=True)
    routes = routes_of(config, plan, load.weight_bytes)
    if routes:
        console.print("\n[bold]ways of weights[/], per push\n")
        console.print(_routes_table(routes))
        _print_busiest(routes, console)
    console.print("\n[bold]memory[/], at least; activations, simulators and libraries come on top\n")
    console.print(_memory_table(config, plan, cluster, memory))
    console.print(
        f"\n[bold]on more nodes like these[/], per update; an estimate at {rates.calls_per_s:g} calls/s, "
        f"{rates.link_gb_per_s:g} GB/s per link, {rates.memory_gb_per_s:g} GB/s of copies\n"
    )
    found = estimates(load, rates)
    for line in _scale_lines(found):
        console.print(line, markup=False, soft_wrap=True)
    console.print("where the bottleneck moves:")
    for line in moves(load, rates):
        console.print(f"  {line}", markup=False, soft_wrap=True)


def _slots_table(plan: Plan, cluster: Cluster) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("rank", "worker", "role", "node", "GPU", "share", "CPUs", "bundle", "pool"):
        table.add_column(name, justify="right" if name in ("share", "CPUs") else "left")
    for folded in fold(plan, cluster):
        groups: dict[tuple[object, ...], list[Slot]] = {}
        for slot in folded.slots:
            key = (slot.role, slot.devices, slot.bundle, slot.cpus, slot.process == slot.worker)
            groups.setdefault(key, []).append(slot)
        for slots in groups.values():
            first = slots[0]
            hosts = sorted({slot.process for slot in slots if slot.process != slot.worker})
            table.add_row(
                spans([slot.rank for slot in slots]),
                escape(f"{first.role}[{spans([index(slot) for slot in slots])}]"),
                first.role,
                first.node,
                spans(first.devices) if first.devices else "",
                f"{first.share:g}" if first.devices else "",
                f"{first.cpus:g}" if not hosts else escape(f"in {', '.join(hosts[:2])}{', ..' if hosts[2:] else ''}"),
                str(first.bundle),
                first.pool,
            )
        if folded.alike and folded.slots:
            table.add_row("", f"and as many on {node_names(folded.alike, cluster)}")
    return table


def _routes_table(routes: Sequence[WeightRoute]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("from", "to", "how"):
        table.add_column(name)
    for name in ("over the network", "within the node"):
        table.add_column(name, justify="right")
    for route in routes[:_MOST_ROUTES]:
        receivers = f"{len(route.receivers)} eval policies" if len(route.receivers) > 1 else route.receivers[0]
        table.add_row(
            escape(f"{route.sender} on {route.node}"),
            escape(f"{receivers} on {route.target}"),
            route.how,
            readable(route.link_bytes) if route.link_bytes else "",
            readable(route.node_bytes),
        )
    if len(routes) > _MOST_ROUTES:
        table.add_row(f"and {len(routes) - _MOST_ROUTES} more")
    return table


def _print_busiest(routes: Sequence[WeightRoute], console: Console) -> None:
    out, into = busiest(routes)
    if out:
        sender, receiver = max(out, key=lambda node: out[node]), max(into, key=lambda node: into[node])
        console.print(
            f"\nbusiest links: {readable(out[sender])} out of {sender}, {readable(into[receiver])} into {receiver}",
            markup=False,
        )


def _memory_table(config: Config, plan: Plan, cluster: Cluster, memory: Memory) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("where", "who", "about", "of"):
        table.add_column(name, justify="right" if name in ("about", "of") else "left")
    shards = len(plan.of("buffer"))
    for folded in fold(plan, cluster):
        node = folded.node
        also = f" (and {node_names(folded.alike, cluster)})" if folded.alike else ""
        rows: dict[tuple[str, str], list[int]] = {}
        for device in node.gpus:
            users = [slot for slot in folded.slots if device in slot.devices]
            counts = _counted(users)
            about = f"{device_memory(folded.slots, device, memory):.2g} GB"
            rows.setdefault((counts, about), []).append(device)
        limit = node.gpu_memory_gb
        for (counts, about), devices in rows.items():
            if counts:
                too_much = limit is not None and device_memory(folded.slots, devices[0], memory) > limit
                table.add_row(
                    f"{node.name} GPU {spans(devices)}{also}",
                    counts,
                    f"[bold red]{about}[/]" if too_much else about,
                    f"{limit:g} GB" if limit is not None else "",
                )
        held = host_memory(folded.slots, shards, memory)
        if folded.slots and held:
            of = f"{node.memory_gb:g} GB" if node.memory_gb is not None else ""
            table.add_row(f"{node.name} host{also}", "weights and data", readable(held * 1e9), of)
    return table


def _counted(slots: Sequence[Slot]) -> str:
    roles = [slot.role for slot in slots]
    return ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))


def _scale_lines(found: Sequence[Estimate]) -> list[str]:
    """Write estimates in columns; lines of their own, since numbers must not be cut off on a narrow terminal."""
    head = ("nodes", "calls", "fragments", "out", "in", "copies", "data in", "gradients", "bottleneck")
    rows: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for strategy in dict.fromkeys(one.strategy for one in found):
        mine = tuple(_scale_row(one) for one in found if one.strategy == strategy)
        rows.setdefault(mine, []).append(strategy)
    widths = [max(len(row[place]) for row in (head, *(row for group in rows for row in group))) for place in range(9)]

    def line(row: Sequence[str]) -> str:
        *numbers, last = row
        return "  ".join([*(f"{text:>{wide}}" for text, wide in zip(numbers, widths, strict=False)), last])

    lines = []
    for group, strategies in rows.items():
        lines += [f"weights by {', '.join(strategies)}", line(head), *map(line, group), ""]
    return lines


def _scale_row(one: Estimate) -> tuple[str, ...]:
    sizes = (one.out_bytes, one.in_bytes, one.copy_bytes, one.data_bytes, one.gradient_bytes)
    counts = (f"{one.nodes:,}", f"{one.calls:,}", f"{one.fragment_calls:,}")
    return (*counts, *map(readable, sizes), f"{one.bottleneck}: {one.seconds[one.bottleneck]:.3g} s")


def readable(num_bytes: float) -> str:
    """Write a number of bytes with a unit.

    >>> readable(1234567)
    '1.23 MB'
    """
    units = ("B", "kB", "MB", "GB", "TB")
    for unit in units:
        if num_bytes < 1000 or unit == units[-1]:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    raise AssertionError("the last unit takes any size")
