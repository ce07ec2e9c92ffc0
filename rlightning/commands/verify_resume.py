"""Proof that a resumed run equals an uninterrupted one.

Each stretch of a run is a process of its own, started as ``python -m rlightning.commands.verify_resume``: what would be
remembered by a process and not by a checkpoint is found out that way.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import load_state, save_state
from rlightning.commands.parity import without_times
from rlightning.commands.states import differences, leaves, short, tree_digest
from rlightning.configuring.load import LoadedConfig, load_config
from rlightning.errors import RLightningError
from rlightning.observability.logs import log_to_console
from rlightning.observability.run_folder import to_yaml
from rlightning.observability.sinks import JsonlSink, read_metrics

_CONFIG, _METRICS, _STATE = "config.yaml", "metrics.jsonl", "state"
_NAMED_PATHS = 3
"""Paths that are named where an item differs."""

_STATELESS_ENV = re.compile(r"env\.\d+")
"""Path of the whole state of an env worker; None there means that it cannot be stored."""

_Select = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that is compared.

    Attributes:
        name: What it is.
        verdict: "equal", "differs" or "not stored".
        detail: Where it differs, or what was compared.
    """

    name: str
    verdict: str
    detail: str


def check_resume(loaded: LoadedConfig, at: int, until: int, console: Console) -> bool:
    """Run to ``until`` at once, and with a stop and a new process at ``at``; print what is equal.

    Args:
        loaded: The configuration; schedules still refer to ``train.max_epochs``.
        at: Epoch at which the second run is stopped.
        until: Epoch at which both are compared.
        console: Where to print.

    Returns:
        Whether nothing differs. That something is not stored counts only if it makes a difference.

    Raises:
        RLightningError: If one of the runs fails.
    """
    with tempfile.TemporaryDirectory(prefix="rlightning-") as folder:
        work = Path(folder)
        (work / _CONFIG).write_text(to_yaml(loaded.config), encoding="utf-8")
        console.print(f"running epochs 1 to {until} without a stop ...")
        _run_in_new_process(work, "straight", until)
        console.print(f"running epochs 1 to {at} ...")
        _run_in_new_process(work, "first", at)
        console.print(f"resuming in a new process, epochs {at + 1} to {until} ...")
        _run_in_new_process(work, "resumed", until, resume_from="first")
        items = compare(work / "straight", work / "first", work / "resumed")
    console.print()
    console.print(_table(items))
    differing = [item.name for item in items if item.verdict == "differs"]
    if differing:
        console.print(f"\n[bold red]not the same run:[/] {', '.join(differing)}")
    else:
        console.print(
            f"\n[bold green]equal[/]: stopping at epoch {at} and resuming changes nothing up to epoch {until}"
        )
    return not differing


def run_stretch(work: Path, name: str, until: int, resume_from: str = "") -> None:
    """Run to an epoch, from the start or from the end of another stretch, and keep metrics and final state.

    Args:
        work: Folder with the configuration; gets a folder per stretch.
        name: Name of the stretch.
        until: Last epoch.
        resume_from: Name of the stretch to go on from; empty starts anew.
    """
    config = load_config(str(work / _CONFIG)).config
    log_to_console("warning")
    sink = JsonlSink(work / name / _METRICS)
    with assemble(config) as engine:
        if resume_from:
            engine.resume(work / resume_from / _STATE)
        engine.start()
        while engine.epoch < until:
            metrics = without_times(engine.run_epoch())
            sink.log(engine.env_steps, {"progress/epoch": engine.epoch, **metrics})
        save_state(work / name / _STATE, engine.get_state())
    sink.close()


def compare(straight: Path, first: Path, resumed: Path) -> list[Item]:
    """Compare the folders of three stretches: one run without a stop, and the two parts of another one."""
    left, right = load_state(straight / _STATE), load_state(resumed / _STATE)
    rows = [*read_metrics(first / _METRICS), *read_metrics(resumed / _METRICS)]
    return [*_compare_metrics(read_metrics(straight / _METRICS), rows), *_compare_states(left, right)]


def _compare_metrics(left: Sequence[Mapping[str, float]], right: Sequence[Mapping[str, float]]) -> Iterator[Item]:
    """Compare metric by metric over all updates."""
    names = sorted({name for row in (*left, *right) for name in row if name != "step"})
    for name in names:
        ours, theirs = ([row.get(name) for row in rows] for rows in (left, right))
        wrong = [
            index for index, pair in enumerate(zip(ours, theirs, strict=False), 1) if len(set(map(repr, pair))) > 1
        ]
        if len(ours) != len(theirs):
            yield Item(name, "differs", f"{len(ours)} and {len(theirs)} updates")
        elif wrong:
            yield Item(name, "differs", f"in {len(wrong)} of {len(ours)} updates, first in update {wrong[0]}")
        else:
            yield Item(name, "equal", f"{len(ours)} updates")


def _compare_states(left: Mapping[str, Any], right: Mapping[str, Any]) -> Iterator[Item]:
    """Compare the final states part by part; every leaf belongs to the first part that takes it."""
    pairs = {**dict(leaves(left)), **dict(leaves(right))}
    wrong = set(differences(left, right))
    remaining = list(pairs)
    for name, select in _PARTS.items():
        paths = [path for path in remaining if select(path)]
        remaining = [path for path in remaining if not select(path)]
        differing = [path for path in paths if path in wrong]
        lost = [path for path in paths if _STATELESS_ENV.fullmatch(path) and pairs[path] is None]
        if differing:
            shown = ", ".join(differing[:_NAMED_PATHS]) + (", ..." if len(differing) > _NAMED_PATHS else "")
            yield Item(name, "differs", f"{len(differing)} of {len(paths)} values: {shown}")
        elif lost:
            yield Item(name, "not stored", f"{', '.join(lost)}: new episodes start after a resume")
        elif paths:
            digest = short(tree_digest({path: pairs[path] for path in paths}))
            yield Item(name, "equal", f"{len(paths)} values, digest {digest}")


def _under(*prefixes: str) -> _Select:
    return lambda path: path.startswith(prefixes)


_PARTS: dict[str, _Select] = {
    "normalisers": lambda path: path.startswith("policy.train.modules") and ("normalizer" in path or "scaler" in path),
    "parameters and other buffers": _under("policy.train.modules"),
    "optimizer": _under("policy.train.optimizers", "policy.train.schedulers"),
    "learner's extra state": _under("policy.train.extra"),
    "learner's random state": _under("policy.train.generator", "policy.train.evaluation_generator"),
    "learner's counters": _under("policy.train"),
    "actors' random states": _under("policy.eval"),
    "envs, with their random states": _under("env"),
    "engine's counters": _under("engine"),
    "anything else": lambda path: True,
}
"""What each part of a final state is called, by the paths of its leaves."""


def _table(items: Sequence[Item]) -> Table:
    colours = {"equal": "green", "differs": "bold red", "not stored": "yellow"}
    table = Table(*(Column(name, overflow="fold") for name in ("item", "verdict", "detail")), box=None, pad_edge=False)
    for item in items:
        table.add_row(item.name, f"[{colours[item.verdict]}]{item.verdict}[/]", escape(item.detail))
    return table


def _run_in_new_process(work: Path, name: str, until: int, resume_from: str = "") -> None:
    program = [sys.executable, "-m", "rlightning.commands.verify_resume"]
    done = subprocess.run([*program, str(work), name, str(until), resume_from], check=False)
    if done.returncode:
        raise RLightningError(
            f"the run to epoch {until} ended with exit code {done.returncode}; see its messages above"
        )


def _main() -> None:
    work, name, until, resume_from = sys.argv[1:]
    run_stretch(Path(work), name, int(until), resume_from)


if __name__ == "__main__":
    _main()
