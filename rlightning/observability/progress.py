"""The progress of a run: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

_PLAIN_INTERVAL_S = 10.0
"""Seconds between two plain lines."""


class ProgressDisplay:
    """Shows epochs, returns, speed and the remaining time, as a context manager.

    On a terminal it updates a bar, and log lines appear above it. Elsewhere, as in a file or a batch job, it writes a
    plain line every few seconds, and one for the first and the last epoch.

    Args:
        total_epochs: Epochs of the whole run.
        first_epoch: Finished epochs at the start; above 0 in a resumed run.
        enabled: Whether to show anything.
        console: The terminal or file; None means standard error.
    """

    def __init__(
        self, total_epochs: int, first_epoch: int = 0, *, enabled: bool = True, console: Console | None = None
    ) -> None:
        self._total, self._first, self._enabled = total_epochs, first_epoch, enabled
        self._console = console or Console(stderr=True)
        self._known: dict[str, float] = {}
        self._bar: Progress | None = None
        self._started = self._last_line = 0.0

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._enabled and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("epoch {task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[figures]}"),
                _TimeLeft(),
                console=self._console,
                expand=True,
            )
            self._bar.add_task("epochs", total=self._total, completed=self._first, figures="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Show a finished epoch.

        Args:
            epoch: Finished epochs.
            metrics: The metrics of the epoch; metrics of earlier epochs that are missing here are still shown.
        """
        self._known.update(metrics)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=epoch, figures=self._figures())
        elif self._enabled and self._line_is_due(epoch):
            self._last_line = time.monotonic()
            left = f"  {_clock(self._seconds_left(epoch))} left" if epoch < self._total else ""
            sys.stderr.flush()
            self._console.print(
                f"epoch {epoch}/{self._total}  {self._figures()}{left}", soft_wrap=True, highlight=False
            )

    def _line_is_due(self, epoch: int) -> bool:
        edge = epoch in (self._first + 1, self._total)
        return edge or time.monotonic() - self._last_line >= _PLAIN_INTERVAL_S

    def _seconds_left(self, epoch: int) -> float:
        done = max(epoch - self._first, 1)
        return (time.monotonic() - self._started) / done * (self._total - epoch)

    def _figures(self) -> str:
        known = self._known
        parts = []
        if "progress/env_steps" in known:
            parts.append(f"{known['progress/env_steps']:,.0f} steps")
        if "episode/return_mean_100" in known:
            parts.append(f"return {known['episode/return_mean_100']:.1f}")
        if "eval/return_mean" in known:
            parts.append(f"eval {known['eval/return_mean']:.1f}")
        if "time/env_steps_per_s" in known:
            parts.append(f"{known['time/env_steps_per_s']:,.0f} steps/s")
        return "  ".join(parts)


class _TimeLeft(ProgressColumn):
    """Rich's estimate while the run is not done."""

    def __init__(self) -> None:
        super().__init__()
        self._remaining = TimeRemainingColumn(compact=True)

    def render(self, task: Task) -> Text:
        return Text("") if task.finished else self._remaining.render(task) + Text(" left")


def _clock(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds.

    >>> _clock(3725), _clock(65)
    ('1:02:05', '1:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
