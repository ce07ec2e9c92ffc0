"""What the framework costs as the work grows: envs, env workers, eval policies, parameters; env and policy do nothing.

One thing grows at a time, from the point of one worker of 8 envs, one eval policy and a small network. A cost that
grows faster than what grows is a fault: ``exponent`` is the slope between the largest two points on logarithmic axes,
about 1 where the cost is proportional, 0 where it is constant.

    python benchmarks/growth.py --rounds 5
"""

from __future__ import annotations

import argparse
import gc
import math
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from arms import spread
from report import machine, print_line, versions
from step_overhead import Shape, build

from rlightning.engine.sync_engine import SyncEngine

SWEEPS: dict[str, list[Shape]] = {
    "num_envs": [Shape(num_envs=count) for count in (8, 64, 512, 4096)],
    "env_workers": [Shape(workers=count) for count in (1, 8, 64, 256)],
    "eval_policies": [Shape(workers=32, policies=count) for count in (1, 4, 16, 32)],
    "parameters": [Shape(parameters=count) for count in (10_000, 100_000, 1_000_000, 10_000_000)],
}
SIZES = {"num_envs": "num_envs", "env_workers": "workers", "eval_policies": "policies", "parameters": "parameters"}
"""What each sweep changes."""
PHASES = ("collect", "learn", "publish")


def time_epoch(engine: SyncEngine) -> dict[str, float]:
    """Run an epoch; milliseconds of each phase."""
    took = {}
    for phase in PHASES:
        start = perf_counter()
        getattr(engine, phase)()
        took[phase] = 1e3 * (perf_counter() - start)
    return took


def resident_mb() -> float:
    """Return the memory that this process uses now, in MB; NaN if the system does not report it."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 / 1e6 if statm.exists() else math.nan


def measure(shape: Shape, rounds: int) -> dict[str, Any]:
    """Build a run of a shape and time its epochs."""
    gc.collect()
    before = resident_mb()
    engine = build(shape)
    time_epoch(engine)
    epochs = [time_epoch(engine) for _ in range(rounds)]
    memory = resident_mb() - before
    engine.close()
    return {
        **{f"{phase}_ms": spread([epoch[phase] for epoch in epochs], 3) for phase in PHASES},
        "memory_mb": round(memory, 1),
    }


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope between the two largest points on logarithmic axes."""
    return round(math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2]), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweeps", nargs="+", choices=list(SWEEPS), default=list(SWEEPS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_line({"kind": "machine", **machine()})
    for sweep in options.sweeps:
        sizes = [getattr(shape, SIZES[sweep]) for shape in SWEEPS[sweep]]
        records = [measure(shape, options.rounds) for shape in SWEEPS[sweep]]
        for size, record in zip(sizes, records, strict=True):
            print_line({"kind": "growth", "sweep": sweep, "size": size, **record})
        slopes = {phase: exponent(sizes, [record[f"{phase}_ms"]["min"] for record in records]) for phase in PHASES}
        print_line({"kind": "exponent", "sweep": sweep, **slopes, "versions": versions(["torch", "numpy"])})


if __name__ == "__main__":
    main()
