"""What a configuration would do: who would run where, what would be sent to whom, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rlightning.assembly.place import plan_placement, require_devices, with_shards
from rlightning.assembly.workers import WorkerPlan, plan_workers, shares_processes
from rlightning.commands.check_placement import (
    load_of,
    machine_at_hand,
    memory_of,
    read_cluster,
    readable,
    show_placement,
)
from rlightning.commands.scale import Rates
from rlightning.config import Config
from rlightning.configuring.load import LoadedConfig
from rlightning.env.env_worker import EnvWorker
from rlightning.errors import PlacementError
from rlightning.observability.run_folder import to_yaml
from rlightning.placement import Cluster
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.group_weights import uses_node_memory
from rlightning.registry import lookup
from rlightning.runtime.spawn import WorkerSpec
from rlightning.types import EnvMeta
from rlightning.types.tree import tree_leaves
from rlightning.weights.topology import transport

_WITHIN = "in memory"
_COLUMN_BYTES = 4 + 3 + 8
"""Reward (float32), three flags, and the version (int64) of one transition."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the traffic of a run is.

    Attributes:
        observation: Bytes of one observation.
        action: Bytes of one action.
        weights: Bytes of all that acts: parameters and buffers.
        parameters: Trainable numbers.
    """

    observation: int
    action: int
    weights: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Data that travel from one kind of worker to another.

    Attributes:
        what: The data.
        sender, receiver: Who.
        transport: How.
        num_bytes: Bytes per epoch, of all senders to all receivers.
    """

    what: str
    sender: str
    receiver: str
    transport: str
    num_bytes: int


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
    described = None if cluster_file is None else read_cluster(cluster_file)
    config = loaded.config
    cluster = described[0] if described else machine_at_hand(config) if _starts_here(config) else None
    config = config if cluster is None else with_shards(config, cluster)
    require_devices(config, described[0] if described else None)
    plan = plan_workers(config)
    meta = env_meta(plan)
    sizes = measure(config, meta)
    console.print(f"[bold]configuration[/] of {escape(loaded.preset)}\n")
    console.print(to_yaml(_with_own_defaults(config)), markup=False, soft_wrap=True)
    console.print("[bold]who runs where[/]\n")
    console.print(_workers_table(plan, config))
    console.print("\n[bold]what is sent to whom[/], per epoch\n")
    console.print(_flows_table(flows(config, plan, sizes)))
    console.print("\n[bold]sizes[/]\n")
    console.print(_sizes_table(config, meta, sizes))
    if cluster is not None and config.cluster.any_remote:
        rates = Rates(link_gb_per_s=described[1].network_gb_per_s) if described else Rates()
        _show_placement(config, cluster, sizes, rates, console, described=described is not None)
    elif config.cluster.any_remote:
        console.print(
            f"\nWho sits where depends on the cluster at {config.cluster.ray_address}: describe it in a file, and "
            f"give it with --cluster.",
            markup=False,
            soft_wrap=True,
        )


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


def _starts_here(config: Config) -> bool:
    return config.cluster.any_remote and config.cluster.ray_address == "local"


def _show_placement(
    config: Config, cluster: Cluster, sizes: Sizes, rates: Rates, console: Console, *, described: bool
) -> None:
    try:
        placed = plan_placement(config, cluster)
    except PlacementError as error:
        hint = "" if described else "\nThat is this machine; another cluster can be described with --cluster."
        raise PlacementError(f"{error}{hint}") from None
    memory = memory_of(config, sizes.weights, sizes.parameters, _transition_bytes(sizes))
    step_bytes = sizes.observation + sizes.action + _COLUMN_BYTES
    options = lookup("policy", config.policy.type).AlgoOptions
    passes = getattr(options.model_validate(config.policy.algo_cfg), "update_epochs", 1) if options else 1
    load = load_of(config, placed, sizes.weights, sizes.parameters, step_bytes, passes)
    show_placement(config, placed, cluster, memory, load, rates, console)


def _transition_bytes(sizes: Sizes) -> int:
    return 2 * sizes.observation + sizes.action + _COLUMN_BYTES


def env_meta(plan: WorkerPlan) -> EnvMeta:
    """Build one env with a single row and ask it for its spaces."""
    env_class, kind, *rest = plan.env[0].args
    worker = EnvWorker(env_class, kind.model_copy(update={"num_envs": 1}), *rest)
    try:
        return worker.get_meta()
    finally:
        worker.close()


def measure(config: Config, meta: EnvMeta) -> Sizes:
    """Build the policy on the CPU and measure it and the spaces of the env."""
    on_cpu = config.policy.model_copy(update={"train_num_gpus": 0.0, "eval_num_gpus": 0.0})
    policy: BasePolicy = lookup("policy", config.policy.type)(on_cpu, PolicyRole.EVAL)
    policy.init_eval(config.evaluation, meta)
    tensors = [tensor for module in policy.get_trainable_parameters().values() for tensor in module.values()]
    return Sizes(
        observation=space_bytes(meta.observation_space),
        action=space_bytes(meta.action_space),
        weights=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        parameters=sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad),
    )


def space_bytes(space: gym.Space[Any]) -> int:
    """Count the bytes of one element; float64 travels as float32.

    >>> space_bytes(gym.spaces.Box(-1, 1, (3,), np.float64))
    12
    """
    leaves = [np.asarray(leaf) for leaf in tree_leaves(space.sample())]
    return sum(leaf.size * min(leaf.itemsize, 4) if leaf.dtype.kind == "f" else leaf.nbytes for leaf in leaves)


def flows(config: Config, plan: WorkerPlan, sizes: Sizes) -> list[Flow]:
    """List what travels in one epoch."""
    rows = config.train.max_rollout_steps * config.num_envs
    transition = _transition_bytes(sizes)
    envs, actors, learners, shards = (_names(part) for part in (plan.env, plan.eval, plan.train, plan.buffer))

    def flow(what: str, sender: str, sent: list[WorkerSpec], receiver: str, got: list[WorkerSpec], size: int) -> Flow:
        return Flow(what, sender, receiver, _transport(sent, got), size)

    if shares_processes(config):
        collected = [
            Flow("observations", envs, actors, _WITHIN, rows * sizes.observation),
            Flow("actions", actors, envs, _WITHIN, rows * sizes.action),
            flow("fragments of transitions", actors, plan.eval, shards, plan.buffer, rows * transition),
        ]
    else:
        seen = rows * (sizes.observation + _COLUMN_BYTES)
        collected = [
            flow("observations", envs, plan.env, actors, plan.eval, rows * sizes.observation),
            flow("actions", actors, plan.eval, envs, plan.env, rows * sizes.action),
            flow("observations and rewards", envs, plan.env, shards, plan.buffer, seen),
            flow("actions and their extras", actors, plan.eval, shards, plan.buffer, rows * sizes.action),
        ]
    return [
        *collected,
        flow("transitions", shards, plan.buffer, learners, plan.train, rows * transition),
        _weight_flow(config, plan, sizes.weights),
    ]


def _weight_flow(config: Config, plan: WorkerPlan, num_bytes: int) -> Flow:
    copies = 1 if config.policy.weight_buffer.buffer_strategy in ("Shared", "Sharded") else len(plan.eval)
    return Flow("weights", _names(plan.train), _names(plan.eval), _weight_transport(config, plan), num_bytes * copies)


def _weight_transport(config: Config, plan: WorkerPlan) -> str:
    """Name the way of the weights if all workers of a kind live on one node."""
    remote = {spec.remote for spec in (*plan.train, *plan.eval)}
    if config.cluster.is_colocated:
        return "handle of shared memory"
    return transport(
        config.policy.weight_buffer.buffer_strategy,
        same_process=remote == {False},
        intra_node=remote == {True},
        node_memory=uses_node_memory(config.policy),
    )


def _transport(senders: Sequence[WorkerSpec], receivers: Sequence[WorkerSpec]) -> str:
    remote = any(spec.remote for spec in (*senders, *receivers))
    return "Ray's object store" if remote else _WITHIN


def _names(specs: Sequence[WorkerSpec]) -> str:
    """Name workers of one kind together: ``env[0..7]``."""
    role = specs[0].name.partition("[")[0]
    return f"{role}[0]" if len(specs) == 1 else f"{role}[0..{len(specs) - 1}]"


def _workers_table(plan: WorkerPlan, config: Config) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("worker", "runs in", "CPUs", "GPUs"):
        table.add_column(name, justify="right" if name in ("CPUs", "GPUs") else "left")
    table.add_row("controller", "this process", "", "")
    ray = "a Ray of its own" if config.cluster.ray_address == "local" else f"Ray at {config.cluster.ray_address}"
    for part in (plan.env, plan.eval_env, plan.train, plan.eval, plan.buffer):
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


def _flows_table(found: Sequence[Flow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("what", "from", "to", "how"):
        table.add_column(name)
    table.add_column("size", justify="right")
    for flow in found:
        table.add_row(flow.what, escape(flow.sender), escape(flow.receiver), flow.transport, readable(flow.num_bytes))
    return table


def _sizes_table(config: Config, meta: EnvMeta, sizes: Sizes) -> Table:
    rows = config.train.max_rollout_steps * config.num_envs
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    for label, text in (
        ("observation space", str(meta.observation_space)),
        ("action space", str(meta.action_space)),
        ("parameters", f"{sizes.parameters:,}"),
        ("weights and normalisers", readable(sizes.weights)),
        ("env steps per epoch", f"{rows:,} = {config.train.max_rollout_steps} steps x {config.num_envs} sub-envs"),
        ("env steps of the run", f"{rows * config.train.max_epochs:,} = {config.train.max_epochs:,} epochs"),
    ):
        table.add_row(label, escape(text))
    return table
