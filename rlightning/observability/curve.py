"""The learning curve of a run, as a picture and as text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Points = list[tuple[float, float]]
"""Env steps and return."""

TRAINING = "episode/return_mean_100"
_EVALUATION = "eval/return_mean"
_EVALUATION_SPREAD = "eval/return_std"
_DPI = 120
_INCHES = (8.0, 4.5)
_TRAINING_COLOUR = "#2a6f97"
_EVALUATION_COLOUR = "#d1495b"
_DOTS = "⠁⠂⠄⡀", "⠈⠐⠠⢀"
"""The dots of a braille character, by column and from top to bottom."""


def draw_curve(rows: Sequence[Mapping[str, float]], path: Path, title: str) -> bool:
    """Draw return against env steps as a PNG: training as a line, evaluations as points with their spread.

    Args:
        rows: Metrics of a run, as ``read_metrics`` returns them.
        path: The picture.
        title: Its title.

    Returns:
        Whether there were points to draw.
    """
    training, evaluation = points(rows, TRAINING), points(rows, _EVALUATION)
    if not training and not evaluation:
        return False
    figure, axes = open_picture("env steps", "episode return")
    if training:
        axes.plot(*zip(*training, strict=True), color=_TRAINING_COLOUR, label="training, mean of 100 episodes")
    if evaluation:
        spread = [row.get(_EVALUATION_SPREAD, 0.0) for row in rows if _EVALUATION in row]
        steps, returns = zip(*evaluation, strict=True)
        axes.errorbar(
            steps,
            returns,
            yerr=spread,
            fmt="o",
            ms=4,
            capsize=3,
            color=_EVALUATION_COLOUR,
            label="evaluation, mean and std",
        )
    axes.set_title(title, parse_math=False)  # a name may have a $
    axes.legend(frameon=False)
    figure.savefig(path, format="png")
    return True


def open_picture(x: str, y: str) -> tuple[Any, Any]:
    """Return a figure of matplotlib and its axes with these labels, in the style of all curves."""
    # Without pyplot, which would choose a window system and hold every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def text_curve(rows: Sequence[Mapping[str, float]], width: int = 60, height: int = 8) -> str:
    """Draw the training curve with characters; empty for fewer than two points.

    Args:
        rows: Metrics of a run, as ``read_metrics`` returns them.
        width: Characters of the plot, without the labels of the y axis.
        height: Lines of the plot, without the labels of the x axis.
    """
    curve = points(rows, TRAINING) or points(rows, _EVALUATION)
    if len(curve) < 2:
        return ""
    steps, returns = [step for step, _ in curve], [return_ for _, return_ in curve]
    low, high = min(returns), max(returns)
    lines = _plot(curve, width, height)
    labels = [f"{high:,.0f}", *[""] * (height - 2), f"{low:,.0f}"]
    margin = max(len(label) for label in labels)
    body = [f"{label:>{margin}} ┤{line}" for label, line in zip(labels, lines, strict=True)]
    left, right = f"{steps[0]:,.0f}", f"{steps[-1]:,.0f} env steps"
    axis = " " * margin + " └" + "─" * width
    return "\n".join([*body, axis, " " * (margin + 2) + left + right.rjust(width - len(left))])


def points(rows: Sequence[Mapping[str, float]], name: str) -> Points:
    """List steps and values of one metric, without missing and infinite values."""
    found = [(row["step"], row[name]) for row in rows if name in row]
    return [(step, value) for step, value in found if abs(value) < float("inf")]


def _plot(curve: Points, width: int, height: int) -> list[str]:
    """Draw a polyline with braille characters, which have 2 x 4 dots each."""
    (first, _), (last, _) = curve[0], curve[-1]
    low, high = min(value for _, value in curve), max(value for _, value in curve)
    columns, dots = 2 * width, 4 * height
    cells = [[0] * width for _ in range(height)]
    index, previous = 0, None
    for column in range(columns):
        step = first + (last - first) * column / (columns - 1)
        while index + 2 < len(curve) and curve[index + 1][0] <= step:
            index += 1
        (step_a, value_a), (step_b, value_b) = curve[index], curve[index + 1]
        share = min(max((step - step_a) / (step_b - step_a), 0.0), 1.0)
        value = value_a + share * (value_b - value_a)
        row = round((high - value) / (high - low) * (dots - 1)) if high > low else dots // 2
        for dot in _between(row if previous is None else previous, row):
            cells[dot // 4][column // 2] |= ord(_DOTS[column % 2][dot % 4]) - 0x2800
        previous = row
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in line) for line in cells]


def _between(start: int, stop: int) -> range:
    """Return the dots between two heights, without the dot of ``start``."""
    if start == stop:
        return range(stop, stop + 1)
    return range(start + 1, stop + 1) if stop > start else range(stop, start)
