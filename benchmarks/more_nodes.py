"""What more nodes would cost: control calls and bytes per link of one update, and where the bottleneck moves.

An estimate on paper for 1, 8, 64 and 1,000 nodes like those of a plan. It counts what the code sends and divides by
assumed rates; nothing is measured, and waiting, contention and the work itself are left out.

    python benchmarks/more_nodes.py ppo_halfcheetah cluster=ray cluster.train_worker_num=4 --cluster nodes.yaml
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlightning.assembly.plan import RunPlan, plan_run
from rlightning.assembly.sizes import LOCAL, Sizes, env_meta, measure
from rlightning.commands.check import readable
from rlightning.configuring.cluster_file import read_cluster
from rlightning.configuring.load import load_config
from rlightning.registry import lookup
from rlightning.weights.topology import STRATEGIES
from rlightning.weights.traffic import busiest, weight_routes

NODES = (1, 8, 64, 1000)
"""Numbers of nodes that are looked at."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a cluster is assumed to do.

    Attributes:
        calls_per_s: Calls on workers that the controller makes per second.
        link_gb_per_s: GB per second over the link of a node, each way.
        memory_gb_per_s: GB per second that are copied within a node.
    """

    calls_per_s: float = 5000.0
    link_gb_per_s: float = 12.5
    memory_gb_per_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """One update of a run, per node.

    Attributes:
        learning_share: Part of the nodes that have train policies; 1 where all have both roles.
        trains: Train policies on a node that learns.
        shards: Shards on a node that learns.
        evals: Eval policies on a node that acts.
        envs: Env workers on a node that acts.
        steps: Steps that each env worker makes.
        step_bytes: Bytes that one env worker sends to its shard per step.
        weight_bytes: Bytes of all that acts.
        gradient_bytes: Bytes of all gradients.
        gradient_steps: Gradient steps; minibatches are taken to grow with the number of nodes.
        by_fragment: Whether one call collects all steps.
        broadcast: Whether weights travel by a communication group.
    """

    learning_share: float
    trains: float
    shards: float
    evals: float
    envs: float
    steps: int
    step_bytes: int
    weight_bytes: int
    gradient_bytes: int
    gradient_steps: int
    by_fragment: bool = False
    broadcast: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one update costs on a number of nodes.

    Attributes:
        nodes: All nodes.
        strategy: ``policy.weight_buffer.buffer_strategy``.
        calls: Calls of the controller, as the run collects.
        fragment_calls: Calls of the controller if one call collected all steps of an eval policy.
        out_bytes: Weights over the busiest link out of a node.
        in_bytes: Weights over the busiest link into a node.
        copy_bytes: Weights that are copied within the busiest node.
        data_bytes: Collected data over the busiest link into a node.
        gradient_bytes: Gradients over the link of a node, each way.
        seconds: What -> seconds at the assumed rates: "calls" of the controller, "weights out" of a node and "weights
            in", "copies" of weights within a node, "data in" and "gradients".
    """

    nodes: int
    strategy: str
    calls: int
    fragment_calls: int
    out_bytes: int
    in_bytes: int
    copy_bytes: int
    data_bytes: int
    gradient_bytes: int
    seconds: dict[str, float]

    @property
    def bottleneck(self) -> str:
        """Name what takes the longest."""
        return max(self.seconds, key=lambda name: self.seconds[name])


def load_of(plan: RunPlan, sizes: Sizes, passes: int) -> Load:
    """Sum up what each node of a plan does.

    Args:
        plan: The plan of a run on a cluster.
        sizes: Sizes of what it moves.
        passes: Passes of a learner over the data of an update.
    """
    config, workers = plan.config, plan.workers
    placed = plan.nodes()
    nodes = {
        role: {placed.get(spec.name, LOCAL) for spec in specs}
        for role, specs in (("train", workers.train), ("eval", workers.eval), ("env", workers.env))
    }
    learning, acting = nodes["train"], nodes["eval"] | nodes["env"]
    mixed = bool(learning & acting)
    rows = config.train.max_rollout_steps * config.num_envs
    return Load(
        learning_share=1.0 if mixed else len(learning) / len(learning | acting),
        trains=config.cluster.train_worker_num / len(learning | acting if mixed else learning),
        shards=len(workers.buffer) / len(learning | acting if mixed else learning),
        evals=config.cluster.eval_worker_num / len(learning | acting if mixed else acting),
        envs=config.num_env_workers / len(learning | acting if mixed else acting),
        steps=config.train.max_rollout_steps,
        step_bytes=sizes.step * config.num_envs // config.num_env_workers,
        weight_bytes=sizes.weights,
        gradient_bytes=4 * sizes.parameters,
        gradient_steps=passes * max(1, -(-rows // config.train.batch_size)),
        by_fragment=plan.by_fragment,
        broadcast=plan.weights.is_broadcast,
    )


def estimate(load: Load, nodes: int, strategy: str, rates: Rates | None = None) -> Estimate:
    """Estimate one update.

    Args:
        load: What each node does.
        nodes: How many nodes.
        strategy: ``policy.weight_buffer.buffer_strategy``.
        rates: What the cluster is assumed to do.
    """
    rates = rates if rates is not None else Rates()
    learning = max(1, round(nodes * load.learning_share))
    mixed = learning >= nodes
    acting = nodes if mixed else nodes - learning
    trains, shards = _count(load.trains, learning), _count(load.shards, learning)
    evals, envs = _count(load.evals, acting), _count(load.envs, acting)
    routes = weight_routes(
        _placement(nodes, learning, trains, evals), strategy, load.weight_bytes, broadcast=load.broadcast
    )
    out, into = busiest(routes)
    copies: dict[str, int] = {}
    for route in routes:
        copies[route.target] = copies.get(route.target, 0) + route.node_bytes
    collected = envs * load.steps * load.step_bytes
    data = 0 if mixed else collected // learning
    gradients = round(load.gradient_steps * 2 * load.gradient_bytes * (learning - 1) / learning)
    # Per step: one call per eval policy, env worker and shard. Then the train policies get data and train; the senders
    # send, the receivers of each way receive, and each eval policy is told.
    other_calls = 2 * shards + 2 * trains + len(routes) + _receiving(strategy, len(routes), evals) + evals
    fragment_calls = evals + other_calls
    calls = fragment_calls if load.by_fragment else load.steps * (min(evals, envs) + envs + shards) + other_calls
    out_bytes, in_bytes = max(out.values(), default=0), max(into.values(), default=0)
    copy_bytes = max(copies.values(), default=0)
    link = rates.link_gb_per_s * 1e9
    seconds = {
        "calls": calls / rates.calls_per_s,
        "weights out": out_bytes / link,
        "weights in": in_bytes / link,
        "copies": copy_bytes / (rates.memory_gb_per_s * 1e9),
        "data in": data / link,
        "gradients": gradients / link,
    }
    return Estimate(nodes, strategy, calls, fragment_calls, out_bytes, in_bytes, copy_bytes, data, gradients, seconds)


def estimates(load: Load, rates: Rates | None = None, nodes: Sequence[int] = NODES) -> list[Estimate]:
    """Estimate all numbers of nodes with all strategies; those that are impossible are left out."""
    strategies = [strategy for strategy in STRATEGIES if strategy != "Sharded" or not load.broadcast]
    return [estimate(load, count, strategy, rates) for strategy in strategies for count in nodes]


def moves(load: Load, rates: Rates | None = None, nodes: Sequence[int] = NODES) -> list[str]:
    """Describe the bottleneck for both ways to collect, and the number of nodes from which on it is another one."""
    lines = []
    for label, by_fragment in (("step by step", False), ("by fragment", True)):
        found = estimates(replace(load, by_fragment=by_fragment), rates, nodes)
        paths: dict[str, list[str]] = {}
        for strategy in dict.fromkeys(one.strategy for one in found):
            parts: list[str] = []
            for one in (one for one in found if one.strategy == strategy):
                if not parts or not parts[-1].startswith(one.bottleneck):
                    parts.append(f"{one.bottleneck} from {one.nodes} {'node' if one.nodes == 1 else 'nodes'} on")
            paths.setdefault(", then ".join(parts), []).append(strategy)
        lines += [f"{label}, {', '.join(strategies)}: {path}" for path, strategies in paths.items()]
    return lines


def _count(per_node: float, nodes: int) -> int:
    return max(1, round(per_node * nodes))


def _placement(nodes: int, learning: int, trains: int, evals: int) -> dict[str, dict[str, list[str]]]:
    """Spread policies evenly: over all nodes where all learn, else over those of their role."""
    names = [f"n{index}" for index in range(nodes)]
    acting = names if learning >= nodes else names[learning:]
    placement: dict[str, dict[str, list[str]]] = {name: {"train_policies": [], "eval_policies": []} for name in names}
    for index in range(trains):
        placement[names[index * learning // trains]]["train_policies"].append(f"train[{index}]")
    for index in range(evals):
        placement[acting[index * len(acting) // evals]]["eval_policies"].append(f"eval[{index}]")
    return placement


def _receiving(strategy: str, routes: int, evals: int) -> int:
    """Count the calls that have weights received: one per eval policy, or one per node for all of them."""
    return routes if strategy == "Shared" else evals


def _scale_lines(found: Sequence[Estimate]) -> list[str]:
    """Write estimates in columns."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", help="name of a preset, or path of a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to it")
    parser.add_argument("--cluster", type=Path, required=True, help="file that describes a cluster")
    options = parser.parse_args()
    config = load_config(options.preset, options.overrides).config
    cluster, description = read_cluster(options.cluster)
    plan = plan_run(config, cluster)
    declared = lookup("policy", config.policy.type).AlgoOptions
    passes = getattr(declared.model_validate(config.policy.algo_cfg), "update_epochs", 1) if declared else 1
    load = load_of(plan, measure(config, env_meta(plan.workers)), passes)
    rates = Rates(link_gb_per_s=description.network_gb_per_s)
    print(
        f"an estimate at {rates.calls_per_s:g} calls/s, {rates.link_gb_per_s:g} GB/s per link, "
        f"{rates.memory_gb_per_s:g} GB/s of copies\n"
    )
    for line in (*_scale_lines(estimates(load, rates)), "where the bottleneck moves:", *moves(load, rates)):
        print(line)


if __name__ == "__main__":
    main()
