"""The application ``rlightning``, and what its commands share: arguments, exit codes, the terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rlightning.commands.problems import (
    EXIT_BAD_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    config_error_in,
    print_failure,
    print_problems,
)

app = typer.Typer(
    name="rlightning",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

PresetArgument = Annotated[
    str, typer.Argument(metavar="PRESET", help="Name of a preset (see 'rlightning presets'), or path of a YAML file.")
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Changes to the preset, in Hydra's grammar: train.lr=1e-3, env.num_envs=32, cluster=ray.",
    ),
]
ConfigDirOption = Annotated[
    Path | None,
    typer.Option("--config-dir", "-c", help="Folder of your own presets and groups; ./conf is searched anyway."),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/ppo_cartpole-20250131-120000.")
]


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what a command raises into a message and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except typer.Exit:
        raise
    except Exception as error:
        config_error = config_error_in(error)
        if config_error is not None:
            print_problems(config_error)
            raise typer.Exit(EXIT_BAD_CONFIG) from None
        print_failure(error)
        raise typer.Exit(EXIT_FAILED) from None


@contextmanager
def loading() -> Iterator[None]:
    """End the process on the spot at Ctrl-C while modules are loaded; nothing was started by then.

    torch loads numpy by C code that swallows a KeyboardInterrupt: the run would go on, maybe with half of numpy.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or before is not signal.default_int_handler:  # ignored, as in a script's background
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def open_console() -> Console:
    """Return a console that colours nothing by itself."""
    return Console(highlight=False)
