"""What a benchmark prints: one JSON object per line, with the versions and the machine that made it."""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from settings import Settings


class IterationClock:
    """Records the time and the number of transitions at the end of each iteration.

    CPU time (of all threads of this process) is taken beside wall time: it says less about what a user waits for, and
    more on a machine that others use too.
    """

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._cpu: list[float] = []
        self._transitions: list[int] = []
        self._collect_s: list[float] = []
        self._returns: list[float | None] = []
        self.restart()

    def restart(self) -> None:
        """Start now, where building took place in between."""
        self._start = time.perf_counter()

    def tick(self, transitions: int, collect_s: float | None = None, returns: Sequence[float] = ()) -> None:
        """Close an iteration that collected so many transitions.

        Args:
            transitions: Of all sub-envs.
            collect_s: Seconds of the iteration that went into collecting, where that is known.
            returns: Those of the last training episodes.
        """
        self._ends.append(time.perf_counter())
        self._cpu.append(time.process_time())
        self._transitions.append(transitions)
        self._returns.append(sum(returns) / len(returns) if returns else None)
        if collect_s is not None:
            self._collect_s.append(collect_s)

    def curve(self, points: int) -> list[list[float]]:
        """Return some points of the learning curve: transitions, seconds, mean return of the last episodes."""
        every = -(-len(self._ends) // points)
        rows, total = [], 0
        for place, (end, count, mean) in enumerate(zip(self._ends, self._transitions, self._returns, strict=True), 1):
            total += count
            if mean is not None and (place % every == 0 or place == len(self._ends)):
                rows.append([total, round(end - self._start, 2), round(mean, 1)])
        return rows

    def summary(self, warmup: int) -> dict[str, Any]:
        """Summarise the run; the rate leaves out the iterations that warm it up.

        Args:
            warmup: How many these are.

        Raises:
            ValueError: If there are no others.
        """
        measured = len(self._ends) - warmup
        if measured < 1:
            raise ValueError(f"{len(self._ends)} iterations made, more than {warmup} wanted: raise --iterations")
        last = warmup - 1
        seconds, transitions = self._ends[-1] - self._ends[last], sum(self._transitions[warmup:])
        cpu_seconds = self._cpu[-1] - self._cpu[last]
        parts = {}
        if self._collect_s:
            parts = {"collect_ms": round(1e3 * sum(self._collect_s[warmup:]) / measured, 3)}
        return {
            "iterations": len(self._ends),
            "transitions": sum(self._transitions),
            "wall_s": round(self._ends[-1] - self._start, 4),
            "warmup_s": round(self._ends[last] - self._start, 4),
            "ms_per_iteration": round(1e3 * seconds / measured, 3),
            "cpu_ms_per_iteration": round(1e3 * cpu_seconds / measured, 3),
            "steps_per_s": round(transitions / seconds, 1),
            **parts,
        }


def print_run(arm: str, settings: Settings, clock: IterationClock, packages: Sequence[str], **further: Any) -> None:
    """Print the result of one run of one arm."""
    labels = {"kind": "run", "arm": arm, "env": settings.env_id, "seed": settings.seed, "threads": settings.threads}
    labels |= {"num_envs": settings.num_envs, "peak_rss_mb": peak_rss_mb()}
    if settings.curve_points:
        further["curve"] = clock.curve(settings.curve_points)
    print_line(labels | clock.summary(settings.warmup) | further | {"versions": versions(packages)})


def peak_rss_mb() -> float:
    """Return the peak memory of this process, in MB."""
    unit = 1 if platform.system() == "Darwin" else 1024  # bytes there, kB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


def print_line(record: dict[str, Any]) -> None:
    """Print one record as one line of JSON."""
    print(json.dumps(record), flush=True)


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Look up the versions of Python and of installed packages."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def machine() -> dict[str, Any]:
    """Describe this machine: cores that this process may use, CPU model, operating system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cores": cores, "cpu": _cpu_model(), "system": platform.platform()}


def _cpu_model() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
