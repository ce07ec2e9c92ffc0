"""Runs side by side: their final returns with intervals, what differs between them, and one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlightning.configuring.changes import changes_between
from rlightning.errors import CheckpointError
from rlightning.functional.statistics import bootstrap_difference, bootstrap_interval, interquartile_mean
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import read_metrics

Axis = Literal["steps", "time"]

_EVALUATION, _TRAINING = "eval/return_mean", "episode/return_mean"
_OF_A_SEED = ("seed", "evaluation.seed", "train.save_dir", "log.name", "log.log_dir")
"""Options in which runs of one group may differ."""
_LAST = 0.1
"""Share of the epochs at the end whose training episodes make up the final return."""
_GRID = 200
_FEW = 5
"""Seeds below which an interval says little."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What one run came to.

    Attributes:
        folder: Its folder and configuration.
        rows: Its metrics by step.
        training: Mean return of the training episodes of the last tenth of its epochs; NaN without episodes.
        evaluation: Mean return of the last evaluation; NaN without one.
        steps_per_s: Median over the epochs.
    """

    folder: RunFolder
    rows: list[dict[str, float]]
    training: float
    evaluation: float
    steps_per_s: float

    @classmethod
    def read(cls, path: Path) -> FinishedRun:
        """Read the folder of a run.

        Raises:
            CheckpointError: If it is not one, or has no metrics yet.
        """
        folder = RunFolder.open(path)
        rows = read_metrics(folder.metrics_path) if folder.metrics_path.is_file() else []
        returns = [row[_TRAINING] for row in rows if _TRAINING in row]
        evaluations = [row[_EVALUATION] for row in rows if _EVALUATION in row]
        speeds = [row["time/env_steps_per_s"] for row in rows if "time/env_steps_per_s" in row]
        if not returns and not evaluations:
            raise CheckpointError(f"{path} has no returns yet")
        last = returns[-max(1, math.ceil(_LAST * len(returns))) :]
        return cls(
            folder,
            rows,
            float(np.mean(last)) if last else math.nan,
            evaluations[-1] if evaluations else math.nan,
            float(np.median(speeds)) if speeds else math.nan,
        )

    def curve(self, axis: Axis) -> tuple[list[float], list[float]]:
        """Return the points of the training curve: env steps, or seconds of training, and return."""
        seconds, xs, ys = 0.0, [], []
        for row in self.rows:
            seconds += row.get("time/total_s", 0.0)
            value = row.get("episode/return_mean_100", math.nan)
            if math.isfinite(value):
                xs.append(row["step"] if axis == "steps" else seconds)
                ys.append(value)
        return xs, ys


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that differ in nothing but the seed.

    Attributes:
        name: What tells it from the other groups.
        runs: Its runs.
    """

    name: str
    runs: tuple[FinishedRun, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Groups of runs.

    Attributes:
        groups: In the order of their first runs.
        metric: What counts as the final return.
    """

    groups: tuple[RunGroup, ...]
    metric: Literal["last evaluation", "training, last 10 % of the epochs"]

    def final(self, group: RunGroup) -> list[float]:
        """Return the final return of each run of a group."""
        is_evaluation = self.metric == "last evaluation"
        return [run.evaluation if is_evaluation else run.training for run in group.runs]

    def table(self) -> list[tuple[str, ...]]:
        """Return a row per group: name, seeds, interquartile mean, its 95 % interval, lowest and highest, speed."""
        rows: list[tuple[str, ...]] = []
        for group in self.groups:
            final = self.final(group)
            low, high = bootstrap_interval(final)
            rows.append(
                (
                    group.name,
                    str(len(final)),
                    f"{float(interquartile_mean(final)):,.1f}",
                    "-" if math.isnan(low) else f"{low:,.1f} to {high:,.1f}",
                    f"{min(final):,.1f} to {max(final):,.1f}",
                    f"{np.median([run.steps_per_s for run in group.runs]):,.0f}",
                )
            )
        return rows

    def statement(self) -> list[str]:
        """Return what the numbers show of the best group beside each other one, in lines."""
        lines = []
        ranked = sorted(self.groups, key=lambda group: -float(interquartile_mean(self.final(group))))
        for other in ranked[1:]:
            best, behind = self.final(ranked[0]), self.final(other)
            low, high = bootstrap_difference(best, behind)
            if math.isnan(low):
                lines.append(f"{ranked[0].name} and {other.name}: one seed has no interval; run more seeds")
            elif min(len(best), len(behind)) < _FEW:
                lines.append(
                    f"{ranked[0].name} and {other.name}: {low:,.1f} to {high:,.1f} apart, too few seeds to say more"
                )
            elif low > 0:
                lines.append(f"{ranked[0].name} is better than {other.name}, by {low:,.1f} to {high:,.1f} (95 %)")
            else:
                lines.append(
                    f"{ranked[0].name} and {other.name}: no difference is shown, {low:,.1f} to {high:,.1f} (95 %)"
                )
        fewest = min(len(group.runs) for group in self.groups)
        if fewest < _FEW:
            lines.append(f"fewer than {_FEW} seeds: intervals are too narrow to show a difference; use 5 to 10 or more")
        return lines


def compare(paths: Sequence[Path]) -> Comparison:
    """Read runs and group those that differ in nothing but the seed.

    Args:
        paths: Folders of runs, or folders with such folders.

    Raises:
        CheckpointError: If there is none, or one has no returns.
    """
    runs = [FinishedRun.read(path) for path in _run_folders(paths)]
    groups: list[list[FinishedRun]] = []
    for run in runs:
        home = next((group for group in groups if not _differences(group[0], run)), None)
        if home is None:
            groups.append([run])
        else:
            home.append(run)
    names = _names(groups)
    is_evaluated = all(not math.isnan(run.evaluation) for run in runs)
    metric: Any = "last evaluation" if is_evaluated else "training, last 10 % of the epochs"
    return Comparison(tuple(RunGroup(name, tuple(group)) for name, group in zip(names, groups, strict=True)), metric)


def draw_comparison(comparison: Comparison, path: Path, axis: Axis = "steps") -> None:
    """Draw mean and spread (lowest to highest) over the seeds of each group as a PNG."""
    # Without pyplot, which would choose a window system and hold every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), dpi=120, layout="constrained")
    axes = figure.subplots()
    for index, group in enumerate(comparison.groups):
        curves = [curve for run in group.runs if len((curve := run.curve(axis))[0]) > 1]
        if not curves:
            continue
        first, last = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
        grid = np.linspace(first, last, _GRID)
        values = np.array([np.interp(grid, xs, ys) for xs, ys in curves])
        label = f"{group.name} ({len(curves)} seeds)" if len(curves) > 1 else group.name
        axes.plot(grid, values.mean(axis=0), color=f"C{index}", label=label)
        axes.fill_between(grid, values.min(axis=0), values.max(axis=0), color=f"C{index}", alpha=0.2, lw=0)
    axes.set_xlabel("env steps" if axis == "steps" else "seconds of training")
    axes.set_ylabel("return of training episodes, mean of 100")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _run_folders(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        inside = sorted(folder.parent for folder in path.glob("*/run.json"))
        found += [path] if (path / "run.json").is_file() or not inside else inside
    return list(dict.fromkeys(path.resolve() for path in found))


def _differences(one: FinishedRun, other: FinishedRun) -> dict[str, tuple[Any, Any]]:
    changes = changes_between(one.folder.config, other.folder.config)
    return {path: values for path, values in changes.items() if path not in _OF_A_SEED}


def _names(groups: Sequence[Sequence[FinishedRun]]) -> list[str]:
    """Name each group by its preset and the options that differ between the groups."""
    differing = {path: None for group in groups for path in _differences(groups[0][0], group[0])}
    presets = {group[0].folder.preset for group in groups}
    names = []
    for group in groups:
        values = _values(group[0].folder, differing)
        head = [group[0].folder.preset] if len(presets) > 1 or not values else []
        names.append(" ".join([*head, *values]))
    return names


def _values(folder: RunFolder, paths: dict[str, None]) -> list[str]:
    tree: Any = folder.config.model_dump(mode="json")
    found = []
    for path in paths:
        node = tree
        for part in path.split("."):
            node = node[int(part)] if isinstance(node, list) else node.get(part) if isinstance(node, dict) else None
        found.append(f"{path}={node}")
    return found
