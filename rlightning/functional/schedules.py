"""Schedules of options over a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Schedule = Literal["constant", "linear"]
_FACTORS: dict[Schedule, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "linear": lambda progress: 1.0 - progress,
}


def anneal(schedule: Schedule, progress: float) -> float:
    """Factor for the starting value of an option after a part of the run.

    Args:
        schedule: "constant" is 1 throughout; "linear" goes from 1 to 0.
        progress: Finished part of the run; clamped to [0, 1].

    >>> anneal("linear", 50 / 100)
    0.5
    """
    return _FACTORS[schedule](min(max(progress, 0.0), 1.0))
