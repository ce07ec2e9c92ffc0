"""Run a script of a benchmark in the environment that it belongs to, and read the line that it prints."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Arm:
    """One competitor.

    Attributes:
        script: File in this folder that prints its result as one line of JSON.
        python: Interpreter that has what the script imports.
        options: Arguments that belong to this arm, after the common ones.
    """

    script: str
    python: str
    options: tuple[str, ...] = ()

    def run(self, arguments: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """Run once, in an empty folder of its own, and return the last line of its output.

        Raises:
            RuntimeError: If it fails or prints no line of JSON; shows the end of what it wrote.
            subprocess.TimeoutExpired: If it takes longer than ``timeout_s`` seconds.
        """
        load = os.getloadavg()[0]
        command = [self.python, str(HERE / self.script), *arguments, *self.options]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout_s, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        record: dict[str, Any] = json.loads(lines[-1])
        return record | {"load_before": round(load, 2)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that tell where the environments of the peers are, and how long a run may take."""
    for peer, name in (("sb3", "stable-baselines3"), ("rllib", "RLlib")):
        python = HERE / ".venvs" / peer / "bin" / "python"
        parser.add_argument(f"--{peer}-python", default=str(python), help=f"interpreter that has {name}")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="longest time for one run")


def own_python() -> str:
    """Return the interpreter of the package's own arms."""
    return sys.executable


def spread(values: Sequence[float], digits: int = 2) -> dict[str, float]:
    """Summarise a sample by median, smallest and largest value."""
    figures = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in figures.items()}
