"""How a run that cannot start, or that failed, is told to a person and to a shell."""

from __future__ import annotations

import traceback

from rich.console import Console
from rich.markup import escape

from rlightning.errors import CheckpointError, ConfigError, MissingDependency, PlacementError, UnsupportedSpace

EXIT_FAILED, EXIT_BAD_CONFIG, EXIT_INTERRUPTED = 1, 2, 130
"""A run that failed; a configuration that cannot be run; Ctrl-C."""

_SELF_EXPLAINING = (CheckpointError, MissingDependency, PlacementError, UnsupportedSpace)
"""Errors whose message says all; a traceback would bury it."""


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
    """Show what ended a run on standard error, with the traceback where the message does not say all."""
    console = _stderr()
    if not isinstance(error, _SELF_EXPLAINING):
        console.print("".join(traceback.format_exception(error)), markup=False)
    console.print(f"[bold red]failed:[/] {escape(f'{type(error).__name__}: {error}')}")


def config_error_in(error: BaseException | None) -> ConfigError | None:
    """Find the configuration error that an error, such as that of a worker, stands for; None if there is none."""
    while error is not None:
        if isinstance(error, ConfigError):
            return error
        error = error.__cause__
    return None


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)
