"""``rlightning check``: what a configuration would do, on this machine or on a cluster that is described."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from rlightning.assembly.picture import draw, fold, index, node_names, spans
from rlightning.assembly.plan import RunPlan, plan_run, require_devices
from rlightning.assembly.sizes import (
    Flow,
    Memory,
    Sizes,
    device_memory,
    env_meta,
    flows,
    host_memory,
    measure,
    memory_of,
    routes_of,
)
from rlightning.assembly.workers import WorkerPlan, plan_workers
from rlightning.config import Config
from rlightning.configuring.cluster_file import read_cluster
from rlightning.configuring.load import LoadedConfig
from rlightning.device import VISIBLE_DEVICES, available_gpus, gpu_memory_gb
from rlightning.errors import PlacementError
from rlightning.observability.run_folder import to_yaml
from rlightning.placement import Cluster, Node, Plan, Slot
from rlightning.placement.cluster import parse_devices
from rlightning.registry import lookup
from rlightning.types import EnvMeta
from rlightning.weights.traffic import WeightRoute, busiest

_MOST_ROUTES = 12


def show_plan(loaded: LoadedConfig, console: Console, cluster_file: Path | None = None) -> None:
    """Print all about a configuration; one env and one policy are built here to learn their sizes, nothing else.

    Args:
        loaded: The configuration.
        console: Where to print.
        cluster_file: A described cluster; None means this machine, where a Ray of the run's own would start.

    Raises:
        ConfigError: If an env cannot be built as it is configured, a device that is asked for is not
            there, or the cluster is not described as it should be.
        PlacementError: If the workers do not fit.
        UnsupportedSpace: If the policy cannot serve the env.
    """
    described = None if cluster_file is None else read_cluster(cluster_file)[0]
    config, workers = loaded.config, plan_workers(loaded.config)
    starts_here = config.cluster.any_remote and config.cluster.ray_address == "local"
    cluster = described or (machine_at_hand(workers) if starts_here else None)
    require_devices(workers, described)
    plan = _plan(config, cluster, workers, is_described=described is not None)
    meta = env_meta(workers)
    sizes = measure(config, meta)
    console.print(f"[bold]configuration[/] of {escape(loaded.preset)}\n")
    console.print(to_yaml(_with_own_defaults(plan.config)), markup=False, soft_wrap=True)
    console.print("[bold]who runs where[/]\n")
    console.print(_workers_table(plan))
    console.print(f"\n[bold]how data come[/]\n\n{escape(str(plan.way))}", soft_wrap=True)
    console.print("\n[bold]what is sent to whom[/], per epoch\n")
    console.print(_flows_table(flows(plan, sizes)))
    console.print("\n[bold]sizes[/]\n")
    console.print(_sizes_table(config, meta, sizes))
    if cluster is not None and plan.placement is not None:
        _show_placement(plan, plan.placement, cluster, sizes, console)
    elif config.cluster.any_remote:
        console.print(
            f"\nWho sits where depends on the cluster at {config.cluster.ray_address}: describe it in a file, and "
            f"give it with --cluster.",
            markup=False,
            soft_wrap=True,
        )


def _plan(config: Config, cluster: Cluster | None, workers: WorkerPlan, *, is_described: bool) -> RunPlan:
    try:
        return plan_run(config, cluster, workers)
    except PlacementError as error:
        hint = "" if is_described else "\nThat is this machine; another cluster can be described with --cluster."
        raise PlacementError(f"{error}{hint}") from None


def machine_at_hand(workers: WorkerPlan) -> Cluster:
    """Describe this machine as a Ray of the run's own would: with as many CPUs as the workers ask for at least."""
    remote = [spec for spec in workers.all() if spec.remote]
    cpus = max(os.cpu_count() or 1, math.ceil(sum(spec.num_cpus for spec in remote)))
    gpus = parse_devices(os.environ.get(VISIBLE_DEVICES), available_gpus())
    return Cluster((Node("here", cpus, gpus, gpu_memory_gb=gpu_memory_gb()),))


def _with_own_defaults(config: Config) -> Config:
    """Fill in the defaults of the options that the algorithm declares."""
    cls = lookup("policy", config.policy.type)
    declared = {"model_cfg": cls.ModelOptions, "algo_cfg": cls.AlgoOptions}
    filled = {
        name: options.model_validate(getattr(config.policy, name)).model_dump()
        for name, options in declared.items()
        if options is not None
    }
    return config.model_copy(update={"policy": config.policy.model_copy(update=filled)})


def _show_placement(plan: RunPlan, placement: Plan, cluster: Cluster, sizes: Sizes, console: Console) -> None:
    """Print the place of each worker, the ways of weights, and memory."""
    console.print("\n[bold]who sits where[/]" + ("" if placement.binding else ", for example: Ray decides") + "\n")
    console.print(_slots_table(placement, cluster))
    console.print()
    for line in draw(placement, cluster, console.width):
        console.print(line, markup=False, soft_wrap=True)
    routes = routes_of(plan, sizes.weights)
    if routes:
        console.print("\n[bold]ways of weights[/], per push\n")
        console.print(_routes_table(routes))
        _print_busiest(routes, console)
    console.print("\n[bold]memory[/], at least; activations, simulators and libraries come on top\n")
    console.print(_memory_table(placement, cluster, memory_of(plan, sizes)))


def _workers_table(plan: RunPlan) -> Table:
    table = Table("worker", "runs in", _right("CPUs"), _right("GPUs"), box=None, pad_edge=False)
    config, workers = plan.config, plan.workers
    table.add_row("controller", "this process", "", "")
    ray = "a Ray of its own" if config.cluster.ray_address == "local" else f"Ray at {config.cluster.ray_address}"
    for part in (workers.env, workers.eval_env, workers.train, workers.eval, workers.buffer):
        for _, group in groupby(part, key=lambda spec: (spec.remote, spec.num_cpus, spec.num_gpus)):
            specs = list(group)
            first, each = specs[0], " each" if len(specs) > 1 else ""
            last = f"..{specs[-1].name.partition('[')[2]}" if each else ""
            name = first.name.removesuffix("]") + last if each else first.name
            place = f"{'processes' if each else 'a process'} on {ray}" if first.remote else "this process"
            if first.host and config.cluster.remote_eval:
                place = f"the process{'es' if each else ''} of eval policies"
            cpus = f"{first.num_cpus:g}{each}" if first.remote else ""
            gpus = f"{first.num_gpus:g}{each}" if first.num_gpus else ""
            table.add_row(escape(name), place, cpus, gpus)
    return table


def _right(name: str) -> Column:
    return Column(name, justify="right")


def _flows_table(found: Sequence[Flow]) -> Table:
    table = Table("what", "from", "to", "how", _right("size"), box=None, pad_edge=False)
    for flow in found:
        table.add_row(flow.what, escape(flow.sender), escape(flow.receiver), flow.transport, readable(flow.num_bytes))
    return table


_WHOLE = "; a copy of all is loaded at once, since the policy has a load_state_dict of its own"


def _sizes_table(config: Config, meta: EnvMeta, sizes: Sizes) -> Table:
    rows = config.train.max_rollout_steps * config.num_envs
    table = Table("", "", box=None, pad_edge=False, show_header=False)
    for label, text in (
        ("observation space", str(meta.observation_space)),
        ("action space", str(meta.action_space)),
        ("parameters", f"{sizes.parameters:,}"),
        ("weights and normalisers", readable(sizes.weights) + (_WHOLE if sizes.loads_whole else "")),
        ("env steps per epoch", f"{rows:,} = {config.train.max_rollout_steps} steps x {config.num_envs} sub-envs"),
        ("env steps of the run", f"{rows * config.train.max_epochs:,} = {config.train.max_epochs:,} epochs"),
    ):
        table.add_row(label, escape(text))
    return table


def _slots_table(plan: Plan, cluster: Cluster) -> Table:
    columns = ("rank", "worker", "role", "node", "GPU", _right("share"), _right("CPUs"), "reservation", "pool")
    table = Table(*columns, box=None, pad_edge=False)
    for folded in fold(plan, cluster):
        groups: dict[tuple[object, ...], list[Slot]] = {}
        for slot in folded.slots:
            key = (slot.role, slot.devices, slot.reservation, slot.cpus, slot.process == slot.worker)
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
                str(first.reservation),
                first.pool,
            )
        if folded.alike and folded.slots:
            table.add_row("", f"and as many on {node_names(folded.alike, cluster)}")
    return table


def _routes_table(routes: Sequence[WeightRoute]) -> Table:
    columns = ("from", "to", "how", _right("over the network"), _right("within the node"))
    table = Table(*columns, box=None, pad_edge=False)
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


def _memory_table(plan: Plan, cluster: Cluster, memory: Memory) -> Table:
    table = Table("where", "who", _right("about"), _right("of"), box=None, pad_edge=False)
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
