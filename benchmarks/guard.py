"""A guard of a minute against getting slower: PPO beside the hand-written loop. Ends with 1 where it is worse.

python benchmarks/guard.py
"""

from __future__ import annotations

import argparse
import sys

from arms import Arm, own_python
from report import machine, print_line
from settings import Settings

LIMITS = {"CartPole-v1": 1.35, "HalfCheetah-v5": 1.35}
"""Largest ratio of our time to the hand-written loop's, on the same envs of Gymnasium: CPU time per transition, the
best round of each, which others on the machine disturb least."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--timeout-s", type=float, default=120.0)
    options = parser.parse_args()
    ours = Arm("rlightning_ppo.py", own_python(), ("--backend", "gymnasium"))
    yardstick = Arm("handwritten_ppo.py", own_python())
    print_line({"kind": "machine", **machine()})
    worse = False
    for env_id, limit in LIMITS.items():
        best = [float("inf")] * 2
        for turn in range(options.rounds):
            arguments = Settings(env_id=env_id, iterations=options.iterations, seed=turn).to_command_line()
            for place, arm in enumerate((ours, yardstick)):
                record = arm.run(arguments, options.timeout_s)
                best[place] = min(best[place], record["cpu_ms_per_iteration"] / record["transitions"])
        ratio = round(best[0] / best[1], 3)
        worse = worse or ratio > limit
        print_line({"kind": "guard", "env": env_id, "time_ratio": ratio, "limit": limit})
    sys.exit(int(worse))


if __name__ == "__main__":
    main()
