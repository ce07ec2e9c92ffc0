"""Return over env steps: this package beside stable-baselines3 with the same settings, both curves of every seed.

python benchmarks/learning_curves.py --env-id HalfCheetah-v5 --steps 1000000 --seeds 3
"""

from __future__ import annotations

import argparse
from typing import Any

from arms import Arm, add_options, own_python, spread
from report import machine, print_line
from settings import Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-id", default="HalfCheetah-v5")
    parser.add_argument("--steps", type=int, default=1_000_000, help="env steps of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--points", type=int, default=50, help="points of a curve")
    parser.add_argument(
        "--arms", nargs="+", choices=["rlightning", "handwritten", "sb3"], default=["rlightning", "sb3"]
    )
    add_options(parser)
    options = parser.parse_args()
    known = {
        "rlightning": Arm("rlightning_ppo.py", own_python()),
        "handwritten": Arm("handwritten_ppo.py", own_python()),
        "sb3": Arm("sb3_ppo.py", options.sb3_python),
    }
    print_line({"kind": "machine", **machine()})
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.arms}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.arms:
            settings = Settings(env_id=options.env_id, seed=seed, normalise=1, curve_points=options.points)
            settings = settings.lasting(options.steps)
            record = known[name].run(settings.to_command_line(), options.timeout_s)
            runs[name].append(record)
            print_line(record)
    for name, records in runs.items():
        figures = {figure: spread([record[figure] for record in records]) for figure in ("mean_return", "wall_s")}
        print_line({"kind": "summary", "env": options.env_id, "arm": name, "seeds": len(records), **figures})


if __name__ == "__main__":
    main()
