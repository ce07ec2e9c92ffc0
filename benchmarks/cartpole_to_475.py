"""Env steps and wall time until the last 100 training episodes of CartPole-v1 have a mean return of 475.

The preset of this package beside stable-baselines3 with the settings that rl-baselines3-zoo publishes, interleaved.

    python benchmarks/cartpole_to_475.py --seeds 5
"""

from __future__ import annotations

import argparse
from typing import Any

from arms import Arm, add_options, own_python, spread
from report import machine, print_line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arms", nargs="+", choices=["rlightning", "sb3"], default=["rlightning", "sb3"])
    add_options(parser)
    options = parser.parse_args()
    known = {
        "rlightning": Arm("rlightning_cartpole.py", own_python()),
        "sb3": Arm("sb3_cartpole.py", options.sb3_python),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in options.arms}
    print_line({"kind": "machine", **machine()})
    for seed in range(options.seeds):
        for name in options.arms:
            record = known[name].run(["--seed", str(seed)], options.timeout_s)
            runs[name].append(record)
            print_line(record)
    for name, records in runs.items():
        print_line(summary(name, records))


def summary(arm: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Summarise the seeds of one arm; the spreads are over the solved ones."""
    solved = [record for record in records if record["solved"]]
    labels = {"kind": "summary", "arm": arm, "seeds": len(records), "solved": len(solved)}
    if not solved:
        return labels
    return labels | {figure: spread([record[figure] for record in solved]) for figure in ("env_steps", "wall_s")}


if __name__ == "__main__":
    main()
