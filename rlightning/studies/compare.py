"""Runs side by side: their final returns with intervals, what differs between them, and one picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlightning.configuring.changes import changes_between
from rlightning.errors import CheckpointError
from rlightning.functional.statistics import FEWEST, bootstrap_difference, bootstrap_interval, interquartile_mean
from rlightning.observability.curve import TRAINING, Points, open_picture, points
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import read_metrics

Axis = Literal["steps", "time"]

_EVALUATION, _TRAINING = "eval/return_mean", "episode/return_mean"
_OF_A_SEED = ("seed", "evaluation.seed", "train.save_dir", "log.name", "log.log_dir")
"""Options in which runs of one group may differ."""
_LAST = 0.1
"""Share of the epochs at the end whose training episodes make up the final return."""
_GRID = 200


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
            CheckpointError: If it is not one, has no returns yet, or ended with one that is no number.
        """
        folder = RunFolder.open(path)
        rows = read_metrics(folder.metrics_path) if folder.metrics_path.is_file() else []
        returns = [row[_TRAINING] for row in rows if _TRAINING in row]
        evaluations = [row[_EVALUATION] for row in rows if _EVALUATION in row]
        speeds = [row["time/env_steps_per_s"] for row in rows if "time/env_steps_per_s" in row]
        if not returns and not evaluations:
            raise CheckpointError(f"{path} has no returns yet")
        if not all(map(math.isfinite, [*returns[-1:], *evaluations[-1:]])):
            raise CheckpointError(f"{path} ended with a return that is no number")
        last = returns[-max(1, math.ceil(_LAST * len(returns))) :]
        return cls(
            folder,
            rows,
            float(np.mean(last)) if last else math.nan,
            evaluations[-1] if evaluations else math.nan,
            float(np.median(speeds)) if speeds else math.nan,
        )

    def curve(self, axis: Axis) -> Points:
        """Return the training curve: env steps, or seconds of training, and return."""
        if axis == "steps":
            return points(self.rows, TRAINING)
        seconds = accumulate(row.get("time/total_s", 0.0) for row in self.rows)
        return points([{**row, "step": second} for row, second in zip(self.rows, seconds, strict=True)], TRAINING)


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
        left_out: Why some folders are not among the runs.
    """

    groups: tuple[RunGroup, ...]
    metric: Literal["last evaluation", "training, last 10 % of the epochs"]
    left_out: tuple[str, ...] = ()

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
        lines = [f"left out: {reason}" for reason in self.left_out]
        ranked = sorted(self.groups, key=lambda group: -float(interquartile_mean(self.final(group))))
        for other in ranked[1:]:
            best, behind = self.final(ranked[0]), self.final(other)
            low, high = bootstrap_difference(best, behind)
            if math.isnan(low):
                few = (
                    "one seed has no interval; run more seeds"
                    if 1 in (len(best), len(behind))
                    else "too few seeds to say more"
                )
                lines.append(f"{ranked[0].name} and {other.name}: {few}")
            elif low > 0:
                lines.append(f"{ranked[0].name} is better than {other.name}, by {low:,.1f} to {high:,.1f} (95 %)")
            else:
                lines.append(
                    f"{ranked[0].name} and {other.name}: no difference is shown, {low:,.1f} to {high:,.1f} (95 %)"
                )
        fewest = min(len(group.runs) for group in self.groups)
        if fewest < FEWEST:
            lines.append(
                f"fewer than {FEWEST} seeds: intervals are too narrow to show a difference; use 5 to 10 or more"
            )
        return lines


def compare(paths: Sequence[Path]) -> Comparison:
    """Read runs and group those that differ in nothing but the seed.

    Of runs of one group with the same seed, the first counts.

    Args:
        paths: Folders of runs, or folders with such folders. Of the latter, runs without a final return are left out.

    Raises:
        CheckpointError: If there is none, or one that is named has no final return.
    """
    runs, left_out = _read(paths)
    groups: list[list[FinishedRun]] = []
    for run in runs:
        home = next((group for group in groups if not _differences(group[0], run)), None)
        if home is None:
            groups.append([run])
        elif any(one.folder.config.seed == run.folder.config.seed for one in home):
            # It would count as another sample, and is the same one.
            left_out.append(f"{run.folder.path} has the seed {run.folder.config.seed} again")
        else:
            home.append(run)
    runs = [run for group in groups for run in group]
    names = _names(groups)
    is_evaluated = all(not math.isnan(run.evaluation) for run in runs)
    metric: Any = "last evaluation" if is_evaluated else "training, last 10 % of the epochs"
    named = tuple(RunGroup(name, tuple(group)) for name, group in zip(names, groups, strict=True))
    return Comparison(named, metric, tuple(left_out))


def draw_comparison(comparison: Comparison, path: Path, axis: Axis = "steps") -> None:
    """Draw mean and spread (lowest to highest) over the seeds of each group as a PNG."""
    x = "env steps" if axis == "steps" else "seconds of training"
    figure, axes = open_picture(x, "return of training episodes, mean of 100")
    for index, group in enumerate(comparison.groups):
        colour, count = f"C{index}", len(group.runs)
        curves = [np.transpose(curve) for run in group.runs if len(curve := run.curve(axis)) > 1]
        first, last = max((xs[0] for xs, _ in curves), default=0), min((xs[-1] for xs, _ in curves), default=0)
        axes.plot([], [], color=colour, label=f"{group.name} ({count} seeds)" if count > 1 else group.name)
        if first >= last:  # no step that all have
            for xs, ys in curves:
                axes.plot(xs, ys, color=colour, lw=0.8)
            continue
        grid = np.linspace(first, last, _GRID)
        values = np.array([np.interp(grid, xs, ys) for xs, ys in curves])
        axes.plot(grid, values.mean(axis=0), color=colour)
        axes.fill_between(grid, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.2, lw=0)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _read(paths: Sequence[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Read runs, each once; returns them, and why those inside of a folder were left out."""
    found: dict[Path, FinishedRun] = {}
    left_out = []
    for path in paths:
        inside = sorted(folder.parent for folder in path.glob("*/run.json"))
        is_run = (path / "run.json").is_file() or not inside
        for folder in [path] if is_run else inside:
            try:
                found[folder.resolve()] = FinishedRun.read(folder)
            except CheckpointError as error:
                if is_run:
                    raise
                left_out.append(str(error))
    if not found:
        raise CheckpointError(f"no run can be compared: {'; '.join(left_out)}")
    return list(found.values()), left_out


def _differences(one: FinishedRun, other: FinishedRun) -> dict[str, tuple[Any, Any]]:
    changes = changes_between(one.folder.config, other.folder.config)
    return {path: values for path, values in changes.items() if path not in _OF_A_SEED}


def _names(groups: Sequence[Sequence[FinishedRun]]) -> list[str]:
    """Name each group by its preset and the options that differ between the groups."""
    changes = [_differences(groups[0][0], group[0]) for group in groups]
    first = {path: value for change in changes for path, (value, _) in change.items()}
    is_named = len({group[0].folder.preset for group in groups}) > 1 or not first
    names = []
    for group, change in zip(groups, changes, strict=True):
        values = first | {path: value for path, (_, value) in change.items()}
        head = [group[0].folder.preset] if is_named else []
        names.append(" ".join([*head, *(f"{path}={value}" for path, value in values.items())]))
    return names
