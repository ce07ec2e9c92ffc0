"""The command ``rlightning``; ``--help`` is quick, since each command imports what it needs."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import rlightning
from rlightning.commands import training, using
from rlightning.commands.app import app, open_console

__all__ = ["app", "main", "training", "using"]


@app.callback()
def _about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=lambda asked: _print_version(asked), help="Show the version."
        ),
    ] = False,
) -> None:
    """Reinforcement learning for embodied agents, from one process to many nodes.

    Start with [bold]rlightning presets[/] and [bold]rlightning train ppo_cartpole[/].
    """


def main() -> None:
    """Run the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    app()


def _print_version(asked: bool) -> None:
    if asked:
        open_console().print(f"rlightning {rlightning.__version__}")
        raise typer.Exit
