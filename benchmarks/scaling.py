"""Throughput of PPO over the number of envs: rising until the cores are full, then flat.

A rollout has at most 32,768 transitions, so that an iteration of 4,096 envs takes seconds and not minutes: 128 steps of
up to 256 envs, and 32 and 8 steps of 1,024 and 4,096. Four minibatches each, as everywhere; with two threads of torch
while learning where there are two cores and 64 envs or more, since a minibatch is large then.

    python benchmarks/scaling.py --rounds 3
"""

from __future__ import annotations

import argparse
from typing import Any

from arms import Arm, add_options, own_python, spread
from report import machine, print_line
from settings import Settings

LARGEST_ROLLOUT = 32_768
"""Transitions of an iteration, at most."""


def settings_for(env_id: str, num_envs: int, iterations: int, seed: int, cores: int) -> Settings:
    """Return the settings of one run."""
    return Settings(
        env_id=env_id,
        num_envs=num_envs,
        rollout_steps=min(128, max(LARGEST_ROLLOUT // num_envs, 1)),
        iterations=iterations,
        warmup=1,
        seed=seed,
        learn_threads=min(cores, 2) if num_envs >= 64 else 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "HalfCheetah-v5"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8, 64, 256, 1024, 4096])
    add_options(parser)
    options = parser.parse_args()
    arm, here = Arm("rlightning_ppo.py", own_python()), machine()
    print_line({"kind": "machine", **here})
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for turn in range(options.rounds):
        for env_id in options.envs:
            for count in options.num_envs:
                settings = settings_for(env_id, count, options.iterations, turn, here["cores"])
                record = arm.run(settings.to_command_line(), options.timeout_s) | {"round": turn}
                runs.setdefault((env_id, count), []).append(record)
                print_line(record)
    for (env_id, count), records in runs.items():
        figures = {name: spread([record[name] for record in records]) for name in ("steps_per_s", "peak_rss_mb")}
        print_line({"kind": "summary", "env": env_id, "num_envs": count, "rounds": len(records), **figures})


if __name__ == "__main__":
    main()
