"""CartPole-v1 by the preset of this package, until it is solved.

python benchmarks/rlightning_cartpole.py --seed 0
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from report import print_line, versions

from rlightning import Config, build_data_buffer, build_engine, build_env_group, build_policy_group
from rlightning.launch import launch


def run(config: Config, goal: float) -> dict[str, Any]:
    """Train, without evaluations, until the mean return of the last 100 episodes reaches the goal after an epoch."""
    start = time.perf_counter()
    env_group = build_env_group(config)
    policy_group = build_policy_group(config, env_group.env_meta)
    with build_engine(config, env_group, policy_group, build_data_buffer(config)) as engine:
        engine.start()
        episodes, solved = 0.0, False
        while engine.epoch < config.train.max_epochs and not solved:
            metrics = engine.run_epoch()
            engine.recorder.log(engine.epoch, engine.env_steps, metrics)
            episodes += metrics["episode/count"]
            solved = episodes >= 100 and engine.return_mean >= goal
        return {
            "solved": solved,
            "env_steps": engine.env_steps,
            "wall_s": round(time.perf_counter() - start, 2),
            "mean_return": round(engine.return_mean, 2),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--goal", type=float, default=475.0)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    overrides = [f"seed={options.seed}", "log.progress=false"]
    launch(lambda config: results.append(run(config, options.goal)), "ppo_cartpole", overrides)
    labels = {"kind": "run", "arm": "rlightning", "seed": options.seed}
    print_line(labels | results[0] | {"versions": versions(["rlightning", "torch", "numpy", "gymnasium"])})


if __name__ == "__main__":
    main()
