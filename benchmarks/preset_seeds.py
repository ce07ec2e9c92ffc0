"""What a preset reaches by the end of its run, over many seeds: how many reach a goal, and after how many steps.

    python benchmarks/preset_seeds.py ppo_cartpole --goal 475 --seeds 32
    python benchmarks/preset_seeds.py ppo_pendulum --goal -200 --seeds 16 train.lr=1e-3

The goal is one for the mean return of the last 100 training episodes. Each seed is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from report import machine, print_line, versions

from rlightning import Config, build_data_buffer, build_engine, build_env_group, build_policy_group
from rlightning.launch import launch


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
    parser.add_argument("preset")
    parser.add_argument("--goal", type=float, required=True)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed alone, in this process")
    options, overrides = parser.parse_known_args()
    if options.seed is not None:
        results: list[dict[str, Any]] = []
        overrides = [f"seed={options.seed}", "log.progress=false", *overrides]
        launch(lambda config: results.append(run(config, options.goal)), options.preset, overrides)
        print_line({"kind": "run", "arm": options.preset, "seed": options.seed} | results[0])
        return
    labels = {"arm": options.preset, "goal": options.goal, "overrides": overrides}
    print_line({"kind": "machine", **machine(), "versions": versions(["rlightning", "torch", "numpy", "gymnasium"])})
    records = []
    for seed in range(options.first, options.first + options.seeds):
        goal = ["--goal", str(options.goal), "--seed", str(seed)]
        command = [sys.executable, __file__, options.preset, *goal, *overrides]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"kind": "run"')]
        if not lines:
            sys.exit(f"seed {seed} ended with exit code {done.returncode}:\n{done.stderr}")
        records.append(json.loads(lines[-1]))
        print_line(records[-1])
    solved = [record["env_steps"] for record in records if record["solved"]]
    steps = statistics.median(solved) if solved else None
    print_line({"kind": "summary", **labels, "seeds": len(records), "solved": len(solved), "env_steps": steps})


if __name__ == "__main__":
    main()
