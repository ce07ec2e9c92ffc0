"""From the command to the first update, beside the imports and envs without which there is none.

    python benchmarks/startup.py --rounds 5

``imports`` is torch and the envs of the preset, built by hand; ``optimizer`` is the same with one of torch's
optimizers, which loads torch's compiler when it is made. ``train`` is ``rlightning train`` for one epoch, its end left
out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from arms import spread
from report import machine, print_line, versions

BASE = """
import torch
import gymnasium as gym
envs = [gym.make("HalfCheetah-v5") for _ in range(8)]
for env in envs:
    env.reset(seed=0)
"""
OPTIMIZER = """
torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
"""
TRAIN = """
import rlightning.engine.base_engine as room
import rlightning.commands.cli as cli
learn = room.BaseEngine.learn

def leave_after(self):
    learn(self)
    import os
    os._exit(0)

room.BaseEngine.learn = leave_after
import sys
sys.argv = ["rlightning", "train", "ppo_halfcheetah", "train.save_dir=runs"]
cli.main()
"""
ARMS = {
    "imports": BASE,
    "optimizer": BASE + OPTIMIZER,
    "train": TRAIN,
}


def time_s(code: str, timeout_s: float) -> float:
    """Run code in a new interpreter, in an empty folder; seconds until it ends."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "arm.py"
        script.write_text(code)
        start = time.perf_counter()
        command = [sys.executable, str(script)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=timeout_s)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout-s", type=float, default=120.0)
    options = parser.parse_args()
    print_line({"kind": "machine", **machine()})
    seconds: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(options.rounds):
        for name, code in ARMS.items():
            seconds[name].append(time_s(code, options.timeout_s))
    found: dict[str, Any] = {"versions": versions(["rlightning", "torch", "tensordict", "gymnasium"])}
    for name, values in seconds.items():
        print_line({"kind": "startup", "arm": name, "seconds": spread(values), **found})
    for name in ("imports", "optimizer"):
        ratios = [ours / base for ours, base in zip(seconds["train"], seconds[name], strict=True)]
        print_line({"kind": "ratio", "arm": "train", "to": name, "time_ratio": spread(ratios, 3)})


if __name__ == "__main__":
    main()
