"""Throughput of PPO: this package beside stable-baselines3 and a hand-written loop, interleaved in one run.

Every run is a process of its own; each round runs every arm once with the same seed, settings and number of
iterations, so that a slow spell of the machine hits all of them, and ratios are taken within a round.

    python benchmarks/ppo_throughput.py --rounds 5 --iterations 40

With other arms it compares the ways to collect on Ray, beside RLlib with the same settings and processes:

    python benchmarks/ppo_throughput.py --envs HalfCheetah-v5 --arms rlightning ray-fragments ray-steps rllib
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

from arms import Arm, add_options, own_python, spread
from report import machine, print_line
from settings import Settings

DEFAULT_ARMS = ["rlightning", "rlightning-compiled", "rlightning-gymnasium", "handwritten", "sb3"]
Runs = Mapping[str, list[dict[str, Any]]]
"""The results of each arm, in the order of the rounds."""


def available_arms(sb3_python: str, rllib_python: str) -> dict[str, Arm]:
    """List the competitors."""
    return {
        "rlightning": Arm("rlightning_ppo.py", own_python()),
        "rlightning-compiled": Arm("rlightning_ppo.py", own_python(), ("--compile", "1")),
        "rlightning-gymnasium": Arm("rlightning_ppo.py", own_python(), ("--backend", "gymnasium")),
        "handwritten": Arm("handwritten_ppo.py", own_python()),
        "sb3": Arm("sb3_ppo.py", sb3_python),
        "sb3-default-threads": Arm("sb3_ppo.py", sb3_python, ("--threads", "0")),
        "ray-fragments": Arm("rlightning_ppo.py", own_python(), ("--collect", "fragments", "--workers", "2")),
        "ray-steps": Arm("rlightning_ppo.py", own_python(), ("--collect", "steps", "--workers", "2")),
        "rllib": Arm("rllib_ppo.py", rllib_python, ("--workers", "2")),
    }


def compare(settings: Settings, arms: Mapping[str, Arm], rounds: int, timeout_s: float) -> None:
    """Run all arms on one env and print every run, then the summaries."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for turn in range(rounds):
        for name, arm in arms.items():
            record = arm.run(replace(settings, seed=turn).to_command_line(), timeout_s)
            record |= {"arm": name, "round": turn}
            runs[name].append(record)
            print_line(record)
    print_summaries(settings, runs)


def print_summaries(settings: Settings, runs: Runs) -> None:
    """Print the spread of each arm, and of each ratio of two arms in the same round."""
    labels = {"env": settings.env_id, "normalise": bool(settings.normalise)}
    for name, records in runs.items():
        figures = ("steps_per_s", "ms_per_iteration", "cpu_ms_per_iteration", "wall_s", "warmup_s")
        spreads = {figure: spread([record[figure] for record in records]) for figure in figures}
        print_line({"kind": "summary", **labels, "arm": name, "rounds": len(records), **spreads})
    for one, other in permutations(runs, 2):
        ratios = {"time_ratio": spread(_ratios(runs[one], runs[other], "ms_per_iteration"), 3)}
        ratios["cpu_time_ratio"] = spread(_ratios(runs[one], runs[other], "cpu_ms_per_iteration"), 3)
        print_line({"kind": "ratio", **labels, "arm": one, "to": other, **ratios})


def _ratios(runs: list[dict[str, Any]], others: list[dict[str, Any]], figure: str) -> list[float]:
    """Ratios of the time per transition; a row that an env spends on its reset is not a transition."""
    return [
        (run[figure] / run["transitions"]) / (other[figure] / other["transitions"])
        for run, other in zip(runs, others, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "HalfCheetah-v5"])
    parser.add_argument("--arms", nargs="+", default=DEFAULT_ARMS)
    parser.add_argument("--normalise", type=int, default=0, help="1: with normalised observations and scaled rewards")
    add_options(parser)
    options = parser.parse_args()
    known = available_arms(options.sb3_python, options.rllib_python)
    if unknown := set(options.arms) - set(known):
        parser.error(f"unknown arms {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    print_line({"kind": "machine", **machine()})
    for env_id in options.envs:
        settings = Settings(env_id=env_id, iterations=options.iterations, normalise=options.normalise)
        compare(settings, {name: known[name] for name in options.arms}, options.rounds, options.timeout_s)


if __name__ == "__main__":
    main()
