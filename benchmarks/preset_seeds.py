"""How many seeds of a preset reach its goal before the run is over, and after how many env steps.

    python benchmarks/preset_seeds.py                                    # every preset that has a goal below
    python benchmarks/preset_seeds.py --presets ppo_pendulum --seeds 16 train.lr=1e-3

A goal is one for the mean return of the last 100 training episodes. Each seed is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

from arms import spread
from report import machine, print_line, versions

from rlightning import Config, build_data_buffer, build_engine, build_env_group, build_policy_group
from rlightning.launch import launch

GOALS = {"ppo_cartpole": 475.0, "ppo_acrobot": -100.0, "ppo_pendulum": -200.0, "ppo_pixels": 7.0}
"""Preset -> mean return of 100 training episodes. The first two are Gymnasium's thresholds; the last can reach 8."""


def run(config: Config, goal: float) -> dict[str, Any]:
    """Train without evaluations until the goal is reached or the run is over."""
    start, best, episodes = time.perf_counter(), float("-inf"), 0.0
    env_group = build_env_group(config)
    policy_group = build_policy_group(config, env_group.env_meta)
    with build_engine(config, env_group, policy_group, build_data_buffer(config)) as engine:
        engine.start()
        while engine.epoch < config.train.max_epochs and best < goal:
            metrics = engine.run_epoch()
            engine.recorder.log(engine.epoch, engine.env_steps, metrics)
            episodes += metrics["episode/count"]
            if episodes >= 100:
                best = max(best, engine.return_mean)
        return {
            "solved": best >= goal,
            "env_steps": engine.env_steps,
            "wall_s": round(time.perf_counter() - start, 2),
            "best": round(best, 2),
            "last": round(engine.return_mean, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=GOALS, default=list(GOALS))
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--in-process", action="store_true", help="run the first seed of one preset in this process")
    options, overrides = parser.parse_known_args()
    if options.in_process:
        print_line(one_seed(options.presets[0], options.first, overrides))
        return
    print_line({"kind": "machine", **machine(), "versions": versions(["rlightning", "torch", "numpy", "gymnasium"])})
    for preset in options.presets:
        records = []
        for seed in range(options.first, options.first + options.seeds):
            records.append(in_a_process(preset, seed, overrides))
            print_line(records[-1])
        print_line(summary(preset, records) | {"overrides": overrides})


def one_seed(preset: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Run one seed in this process."""
    results: list[dict[str, Any]] = []
    arguments = [f"seed={seed}", "log.progress=false", *overrides]
    launch(lambda config: results.append(run(config, GOALS[preset])), preset, arguments)
    return {"kind": "run", "arm": preset, "seed": seed} | results[0]


def in_a_process(preset: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Run one seed in a process of its own."""
    command = [sys.executable, __file__, "--in-process", "--presets", preset, "--first", str(seed), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"kind": "run"')]
    if not lines:
        sys.exit(f"seed {seed} of {preset} ended with exit code {done.returncode}:\n{done.stderr}")
    record: dict[str, Any] = json.loads(lines[-1])
    return record


def summary(preset: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the seeds of one preset; the spreads are over those that reached the goal."""
    solved = [record for record in records if record["solved"]]
    labels = {"kind": "summary", "arm": preset, "goal": GOALS[preset], "seeds": len(records), "solved": len(solved)}
    return labels | {figure: spread([one[figure] for one in solved]) for figure in ("env_steps", "wall_s") if solved}


if __name__ == "__main__":
    main()
