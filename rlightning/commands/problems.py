"""How a run that cannot start, or that failed, is told to a person and to a shell."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

import rlightning
from rlightning.errors import (
    CheckpointError,
    ConfigError,
    MissingDependency,
    PlacementError,
    RecordError,
    RLightningError,
    UnsupportedSpace,
)

EXIT_FAILED, EXIT_BAD_CONFIG, EXIT_INTERRUPTED = 1, 2, 130
"""A run that failed; a configuration that cannot be run; Ctrl-C."""

_SELF_EXPLAINING = (CheckpointError, MissingDependency, PlacementError, RecordError, UnsupportedSpace)
"""Errors whose message says all; a traceback would bury it."""

_OURS = f"{Path(rlightning.__file__).parent}{os.sep}"
_FRAMES = 12
"""Calls of a traceback that are shown at most, the innermost ones."""


def print_problems(error: ConfigError) -> None:
    """Show everything that is wrong with a configuration on standard error."""
    console = _stderr()
    count = len(error.problems)
    console.print(f"[bold red]{count} {'problem' if count == 1 else 'problems'} in the configuration:[/]")
    for problem in error.problems:
        console.print(f"  [bold]{escape(problem.path)}[/]: {escape(problem.message)}")
        if problem.suggestion:
            console.print(f"      did you mean [green]{escape(problem.suggestion)}[/]?")
        if problem.where:
            console.print(f"      [dim]{escape(problem.where)}[/]")


def print_failure(error: Exception) -> None:
    """Show what ended a run on standard error, with ``short_trace`` where the message does not say all.

    The log of the run has the whole traceback.
    """
    console = _stderr()
    if not isinstance(error, _SELF_EXPLAINING):
        trace = short_trace(error)
        if trace:
            console.print(trace, markup=False)
    console.print(f"[bold red]failed:[/] {escape(f'{type(error).__name__}: {error}')}")


def short_trace(error: BaseException) -> str:
    """Write the traceback of what an error stands for from the first call of code outside of this package on.

    Where the exception came from another process, the note that it brought has that traceback. An error that this
    package raised on purpose about what it was given has none.
    """
    *outer, root = causes(error)
    frames = list(traceback.extract_tb(root.__traceback__))
    foreign = [index for index, frame in enumerate(frames) if not frame.filename.startswith(_OURS)]
    if foreign:
        frames = frames[max(0, foreign[0] - 1) :]  # the call before tells what this package wanted of that code
    elif isinstance(root, RLightningError) or hasattr(root, "__notes__"):
        frames = []
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[-_FRAMES:])] if frames else []
    if frames or outer:  # else it would be the message of the error alone, which is shown anyway
        lines += traceback.format_exception_only(root)
    else:
        outer = [root]
    lines += [f"{note}\n" for each in outer for note in getattr(each, "__notes__", ())]
    return "".join(lines)


def config_error_in(error: BaseException | None) -> ConfigError | None:
    """Find the configuration error that an error, such as that of a worker, stands for; None if there is none."""
    return next((cause for cause in causes(error) if isinstance(cause, ConfigError)), None)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that and so on; each once, as ``raise error from error`` is possible."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)
