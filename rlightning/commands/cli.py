"""The command ``rlightning``. Everything heavy is imported inside of the commands, so that ``--help`` is quick."""

from __future__ import annotations

import io
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

import rlightning
from rlightning.commands.problems import (
    EXIT_BAD_CONFIG,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    config_error_in,
    print_failure,
    print_problems,
)
from rlightning.errors import ConfigError, Problem

_VIDEO_ENDINGS = (".mp4", ".gif")

app = typer.Typer(
    name="rlightning",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Preset = Annotated[
    str, typer.Argument(metavar="PRESET", help="Name of a preset (see 'rlightning presets'), or path of a YAML file.")
]
_Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Changes to the preset, in Hydra's grammar: train.lr=1e-3, env.num_envs=32, cluster=ray.",
    ),
]
_ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", "-c", help="Folder of your own presets and groups; ./conf is searched anyway."),
]
_Run = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/ppo_cartpole-20250131-120000.")
]


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


@app.command()
def train(preset: _Preset, overrides: _Overrides = None, config_dir: _ConfigDir = None) -> None:
    """Train a policy and keep everything in a new folder under train.save_dir.

    Ctrl-C ends the run after the current epoch and leaves a checkpoint; press it again to stop at once.

    For example:

        rlightning train ppo_halfcheetah

        rlightning train ppo_cartpole seed=7 train.lr=1e-3 env.num_envs=32

        rlightning train ppo_cartpole cluster=ray env.num_workers=4
    """
    with _exit_codes():
        with _loading():
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
            # Only now, since it loads torch: what is wrong with a configuration is told without that.
            from rlightning.commands.run import train as run_training

        run = run_training(loaded, _console())
        _show_curve(run.metrics_path)


@app.command()
def resume(run: _Run, overrides: _Overrides = None) -> None:
    """Go on with a run from its newest whole checkpoint, in the same folder.

    Changes are written into the folder: config.yaml is what runs from then on, and changes.jsonl says what was changed.

    For example:

        rlightning resume runs/ppo_cartpole-20250131-120000

        rlightning resume runs/ppo_cartpole-20250131-120000 train.max_epochs=400 train.lr=1e-4
    """
    with _exit_codes():
        with _loading():
            from rlightning.commands.run import resume as resume_training
            from rlightning.configuring.changes import open_folder

            folder = open_folder(run, overrides or [], trains=True)
        resume_training(folder, _console())
        _show_curve(folder.metrics_path)


@app.command(name="eval")
def evaluate(
    run: _Run,
    overrides: _Overrides = None,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Whole episodes to run; default: evaluation.episodes.")
    ] = None,
    video: Annotated[Path | None, typer.Option(help="Write one episode to this .mp4 or .gif file.")] = None,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Sample actions instead of taking the most likely ones.")
    ] = False,
    checkpoint: Annotated[
        str, typer.Option(help="Which checkpoint: 'best' (the last one where none was marked), 'last', or its folder.")
    ] = "best",
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**64 - 1, help="Seed of the episodes; default: evaluation.seed.")
    ] = None,
    fps: Annotated[
        float | None, typer.Option(min=1, help="Steps per second of the video; default: real time, as the env says.")
    ] = None,
) -> None:
    """Run whole episodes with the policy of a run and print their returns; in one process, without Ray.

    For example:

        rlightning eval runs/ppo_halfcheetah-20250131-120000 --episodes 20

        rlightning eval runs/ppo_halfcheetah-20250131-120000 --video cheetah.mp4

        rlightning eval runs/ppo_halfcheetah-20250131-120000 env.env_kwargs.reset_noise_scale=0.2
    """
    with _exit_codes():
        if video is not None and video.suffix not in _VIDEO_ENDINGS:
            raise ConfigError(Problem("--video", f"must end in {' or '.join(_VIDEO_ENDINGS)}, got {str(video)!r}"))
        with _loading():
            from rlightning.commands.evaluate import EvalRequest, evaluate_run

        request = EvalRequest(run, checkpoint, episodes, video, sampled, seed, fps, tuple(overrides or ()))
        evaluate_run(request, _console())


@app.command()
def check(
    preset: _Preset,
    overrides: _Overrides = None,
    config_dir: _ConfigDir = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", help="File that describes a cluster; it need not exist.")
    ] = None,
) -> None:
    """Validate a configuration and show what it would do; nothing is started.

    Prints the resolved configuration, the workers, what they would send to each other, and the sizes of it; where
    workers are processes of their own also the node and device of each, the ways of weights, and memory.

    For example:

        rlightning check ppo_cartpole cluster=ray env.num_workers=4

        rlightning check ppo_cartpole cluster=ray env.num_workers=4 --cluster nodes.yaml
    """
    with _exit_codes():
        with _loading():
            from rlightning.commands.check import show_plan
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
        show_plan(loaded, _console(), cluster)


@app.command()
def presets(config_dir: _ConfigDir = None) -> None:
    """List the presets: your own, from --config-dir and ./conf, and those of the package."""
    with _exit_codes():
        from rlightning.configuring.compose import presets as list_presets

        table = Table(Column("preset", no_wrap=True), "what it does", box=None, pad_edge=False)
        for preset in list_presets(config_dir):
            table.add_row(preset.name, escape(preset.description))
        _console().print(table)


@app.command()
def parity(
    preset: _Preset,
    overrides: _Overrides = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to run each of them.")] = 3,
    config_dir: _ConfigDir = None,
) -> None:
    """Run a configuration in one process, all remote and mixed, and compare the numbers bit for bit.

    Exit code 0 if all are equal, 1 if not.

    For example:

        rlightning parity ppo_cartpole --epochs 5 env.num_workers=2
    """
    with _exit_codes():
        with _loading():
            from rlightning.commands.parity import check_parity
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
        if not check_parity(loaded, epochs, _console()):
            raise typer.Exit(EXIT_FAILED)


@app.command(name="verify-resume")
def verify_resume(
    preset: _Preset,
    overrides: _Overrides = None,
    at: Annotated[int, typer.Option(min=1, help="Epoch at which the second run stops and is resumed.")] = 10,
    until: Annotated[int, typer.Option(min=2, help="Epoch at which both runs are compared.")] = 20,
    config_dir: _ConfigDir = None,
) -> None:
    """Prove that a resumed run equals an uninterrupted one.

    One run goes to --until without a stop. Another one stops at --at and goes on in a new process. Then all that was
    measured and all that is stored is compared, item by item: equal, differs, or not stored. Exit code 0 if nothing
    differs, 1 otherwise.

    For example:

        rlightning verify-resume ppo_cartpole --at 10 --until 20
    """
    with _exit_codes():
        if until <= at:
            raise ConfigError(Problem("--until", f"must be greater than --at, got {until} and {at}"))
        with _loading():
            from rlightning.commands.verify_resume import check_resume
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
        if not check_resume(loaded, at, until, _console()):
            raise typer.Exit(EXIT_FAILED)


def main() -> None:
    """Run the command."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may lack a character
    app()


@contextmanager
def _exit_codes() -> Iterator[None]:
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
def _loading() -> Iterator[None]:
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


def _show_curve(metrics: Path) -> None:
    from rlightning.observability.curve import text_curve
    from rlightning.observability.sinks import read_metrics

    curve = text_curve(read_metrics(metrics)) if metrics.exists() else ""
    console = _console()
    if curve and console.encoding.startswith("utf"):
        console.print(f"\n{curve}", markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    return Console(highlight=False)


def _print_version(asked: bool) -> None:
    if asked:
        _console().print(f"rlightning {rlightning.__version__}")
        raise typer.Exit
