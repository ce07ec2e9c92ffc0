"""Commands that train, or look at what a training would do. Everything heavy is imported inside of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Column, Table

from rlightning.commands.app import (
    ConfigDirOption,
    OverridesArgument,
    PresetArgument,
    RunArgument,
    app,
    exit_codes,
    loading,
    open_console,
)
from rlightning.commands.problems import EXIT_FAILED
from rlightning.errors import ConfigError, Problem


@app.command()
def train(preset: PresetArgument, overrides: OverridesArgument = None, config_dir: ConfigDirOption = None) -> None:
    """Train a policy and keep everything in a new folder under train.save_dir.

    Ctrl-C ends the run after the current epoch and leaves a checkpoint; press it again to stop at once.

    For example:

        rlightning train ppo_halfcheetah

        rlightning train ppo_cartpole seed=7 train.lr=1e-3 env.num_envs=32

        rlightning train ppo_cartpole cluster=ray env.num_workers=4
    """
    with exit_codes():
        with loading():
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
            # Only now, since it loads torch: what is wrong with a configuration is told without that.
            from rlightning.commands.run import train as run_training

        run = run_training(loaded, open_console())
        _show_curve(run.metrics_path)


@app.command()
def resume(run: RunArgument, overrides: OverridesArgument = None) -> None:
    """Go on with a run from its newest whole checkpoint, in the same folder.

    Changes are written into the folder: config.yaml is what runs from then on, and changes.jsonl says what was changed.

    For example:

        rlightning resume runs/ppo_cartpole-20250131-120000

        rlightning resume runs/ppo_cartpole-20250131-120000 train.max_epochs=400 train.lr=1e-4
    """
    with exit_codes():
        with loading():
            from rlightning.commands.run import resume as resume_training
            from rlightning.configuring.changes import open_folder

            folder = open_folder(run, overrides or [], trains=True)
        resume_training(folder, open_console())
        _show_curve(folder.metrics_path)


@app.command()
def check(
    preset: PresetArgument,
    overrides: OverridesArgument = None,
    config_dir: ConfigDirOption = None,
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
    with exit_codes():
        with loading():
            from rlightning.commands.check import show_plan
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
        show_plan(loaded, open_console(), cluster)


@app.command()
def presets(config_dir: ConfigDirOption = None) -> None:
    """List the presets: your own, from --config-dir and ./conf, and those of the package."""
    with exit_codes():
        from rlightning.configuring.compose import presets as list_presets

        table = Table(Column("preset", no_wrap=True), "what it does", box=None, pad_edge=False)
        for preset in list_presets(config_dir):
            table.add_row(preset.name, escape(preset.description))
        open_console().print(table)


@app.command()
def parity(
    preset: PresetArgument,
    overrides: OverridesArgument = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs to run each of them.")] = 3,
    config_dir: ConfigDirOption = None,
) -> None:
    """Run a configuration in one process, all remote and mixed, and compare the numbers bit for bit.

    Exit code 0 if all are equal, 1 if not.

    For example:

        rlightning parity ppo_cartpole --epochs 5 env.num_workers=2
    """
    with exit_codes():
        with loading():
            from rlightning.commands.parity import check_parity
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
        if not check_parity(loaded, epochs, open_console()):
            raise typer.Exit(EXIT_FAILED)


@app.command(name="verify-resume")
def verify_resume(
    preset: PresetArgument,
    overrides: OverridesArgument = None,
    at: Annotated[int, typer.Option(min=1, help="Epoch at which the second run stops and is resumed.")] = 10,
    until: Annotated[int, typer.Option(min=2, help="Epoch at which both runs are compared.")] = 20,
    config_dir: ConfigDirOption = None,
) -> None:
    """Prove that a resumed run equals an uninterrupted one.

    One run goes to --until without a stop. Another one stops at --at and goes on in a new process. Then all that was
    measured and all that is stored is compared, item by item: equal, differs, or not stored. Exit code 0 if nothing
    differs, 1 otherwise.

    For example:

        rlightning verify-resume ppo_cartpole --at 10 --until 20
    """
    with exit_codes():
        if until <= at:
            raise ConfigError(Problem("--until", f"must be greater than --at, got {until} and {at}"))
        with loading():
            from rlightning.commands.verify_resume import check_resume
            from rlightning.configuring.load import load_config

            loaded = load_config(preset, overrides or [], config_dir)
        if not check_resume(loaded, at, until, open_console()):
            raise typer.Exit(EXIT_FAILED)


def _show_curve(metrics: Path) -> None:
    from rlightning.observability.curve import text_curve
    from rlightning.observability.sinks import read_metrics

    curve = text_curve(read_metrics(metrics)) if metrics.exists() else ""
    console = open_console()
    if curve and console.encoding.startswith("utf"):
        console.print(f"\n{curve}", markup=False, highlight=False, soft_wrap=True)
