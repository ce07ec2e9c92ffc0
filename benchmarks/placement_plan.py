"""Time to place 8,000 workers on 1,000 nodes: every strategy and every way to place envs.

Each plan is also written as pools and planned again by hand, and both must give every worker the same place; anything
else is an error. The budget is one second.

    python benchmarks/placement_plan.py --rounds 5
"""

from __future__ import annotations

import argparse
from time import perf_counter, process_time

from arms import spread
from report import machine, print_line, versions

from rlightning.config import ClusterConfig
from rlightning.placement import Cluster, Node, Plan, Strategy, WorkerRequest, choose_strategy
from rlightning.placement.pools import as_pools

STRATEGIES = ("default", "disaggregate", "colocate")
ENV_STRATEGIES = ("default", "node-affinity", "device-colocate", "process-colocate")


def requests(strategy: str, env_strategy: str, nodes: int) -> list[WorkerRequest]:
    """Ask for 8 workers per node: a learner, a shard, an eval policy and 5 env workers, on 64 CPUs and 8 GPUs."""
    train_gpus, eval_gpus = (0.5, 0.25) if strategy == "colocate" else (1.0, 0.5)
    env_gpus = 0.05 if env_strategy == "device-colocate" else 0.0
    return [
        *(WorkerRequest("train", index, 1.0, train_gpus) for index in range(nodes)),
        *(WorkerRequest("eval", index, 1.0, eval_gpus) for index in range(nodes)),
        *(WorkerRequest("buffer", index) for index in range(nodes)),
        *(WorkerRequest("env", index, 1.0, env_gpus) for index in range(5 * nodes)),
    ]


def timed(place: Strategy, cluster: Cluster, asked: list[WorkerRequest]) -> tuple[float, float, Plan]:
    """Plan once; seconds of wall and of CPU time, since others may use the machine too."""
    start, cpu_start = perf_counter(), process_time()
    plan = place(cluster, asked)
    return perf_counter() - start, process_time() - cpu_start, plan


def measure(strategy: str, env_strategy: str, nodes: int, rounds: int) -> dict[str, object]:
    """Time one strategy.

    Raises:
        RuntimeError: If the plan, used as pools, gives another one.
    """
    cluster = Cluster(tuple(Node(f"n{index}", 64, tuple(range(8))) for index in range(nodes)))
    asked = requests(strategy, env_strategy, nodes)
    placement = {"strategy": strategy, "env_strategy": env_strategy}
    place = choose_strategy(ClusterConfig.model_validate({"placement": placement}))
    seconds, cpu_seconds, again_seconds = [], [], []
    for _ in range(rounds):
        elapsed, cpu, plan = timed(place, cluster, asked)
        seconds.append(elapsed)
        cpu_seconds.append(cpu)
        manual = {
            "placement": {"mode": "manual", "env_strategy": env_strategy},
            "resource_pool": as_pools(plan, cluster),
        }
        by_hand = choose_strategy(ClusterConfig.model_validate(manual))
        elapsed, _, again = timed(by_hand, cluster, asked)
        again_seconds.append(elapsed)
        if [(slot.node, slot.devices) for slot in again.slots] != [(slot.node, slot.devices) for slot in plan.slots]:
            raise RuntimeError(f"the pools of a plan by {strategy} and {env_strategy} give another plan")
    return {
        "kind": "placement_plan",
        "strategy": strategy,
        "env_strategy": env_strategy,
        "nodes": nodes,
        "workers": len(asked),
        "reservations": len(plan.reservations),
        "plan_s": spread(seconds),
        "plan_cpu_s": spread(cpu_seconds),
        "manual_s": spread(again_seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="plans to time of each kind")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes, with 8 workers for each")
    options = parser.parse_args()
    print_line({"kind": "machine", **machine(), "versions": versions(["rlightning"])})
    for strategy in STRATEGIES:
        for env_strategy in ENV_STRATEGIES:
            print_line(measure(strategy, env_strategy, options.nodes, options.rounds))


if __name__ == "__main__":
    main()
