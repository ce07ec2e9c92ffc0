"""A run from its folder to its curve, and the entry point of a user's script."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from rlightning.assembly.assemble import assemble, trains
from rlightning.assembly.recording import open_run
from rlightning.checkpoint import load_state
from rlightning.commands.drawing import prepare_to_draw
from rlightning.commands.problems import EXIT_BAD_CONFIG, EXIT_INTERRUPTED, config_error_in, print_problems
from rlightning.config import Config
from rlightning.configuring.changes import keep_changes
from rlightning.configuring.load import LoadedConfig, load_config
from rlightning.engine.recorder import CheckpointFolder
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import read_metrics


def train(loaded: LoadedConfig, console: Console | None = None) -> RunFolder:
    """Run a configuration in a new folder and say where everything is.

    Raises:
        KeyboardInterrupt: After Ctrl-C; the folder holds a checkpoint then.
    """
    console = console or Console()
    with _new_folder(loaded) as run, _told(run, console), open_run(run), assemble(run.config) as engine:
        engine.policy_group.state.check_storable()
        result = engine.run()
    if not trains(run.config) and result.evaluation is not None:
        console.print(f"evaluated   initial weights, in {_short(run.path)}", soft_wrap=True, markup=False)
        console.print(result.evaluation.describe(), highlight=False)
    return run


def resume(run: RunFolder, console: Console | None = None) -> RunFolder:
    """Go on with a run from its newest whole checkpoint, in the same folder.

    Raises:
        CheckpointError: If there is none, or it does not fit the configuration.
    """
    console = console or Console()
    checkpoint = CheckpointFolder(run.checkpoints).last()
    counters = load_state(checkpoint, ["engine"])["engine"]
    done, wanted = counters["epoch"], run.config.train.max_epochs
    console.print(f"{run.name}: {done} of {wanted} epochs are done, {checkpoint.name}", soft_wrap=True, markup=False)
    if done >= wanted:
        longer = f"to train on: rlightning resume {_short(run.path)} train.max_epochs=..."
        console.print(f"nothing is left to do; {longer}", soft_wrap=True, markup=False)
        return run
    prepare_to_draw(run.config)
    recording = open_run(run, first_epoch=counters["epoch"], resumed_at=counters["env_steps"])
    # All weights come from the checkpoint.
    config = run.config.model_copy(update={"policy": run.config.policy.model_copy(update={"init_from": None})})
    with _told(run, console), recording, assemble(config) as engine:
        engine.resume(checkpoint)
        # Only now: a change that cannot be built, or that the state does not fit, leaves the folder as it is.
        keep_changes(run, "resume", done, console)
        engine.run()
    return run


def launch(
    main_func: Callable[[Config], Any],
    config_path: Path | str,
    overrides: Sequence[str] | None = None,
    *,
    console: Console | None = None,
) -> None:
    """Run a script: read its configuration, record it in a run folder, and end with an exit code that says how it went.

    Args:
        main_func: Takes the configuration, builds the parts and runs them.
        config_path: A YAML file, or the name of a preset.
        overrides: ``key=value`` arguments; None takes those of the command line.
        console: Where to say what; None means the terminal.

    Raises:
        SystemExit: With 2 if the configuration is wrong, 130 after Ctrl-C. Other errors pass as they are.
    """
    console = console or Console()
    try:
        loaded = load_config(str(config_path), list(sys.argv[1:]) if overrides is None else list(overrides))
        with _new_folder(loaded) as run, _told(run, console), open_run(run):
            main_func(run.config)
    except Exception as error:
        found = config_error_in(error)
        if found is None:
            raise
        print_problems(found)
        raise SystemExit(EXIT_BAD_CONFIG) from error
    except KeyboardInterrupt as error:
        raise SystemExit(EXIT_INTERRUPTED) from error


@contextmanager
def _new_folder(loaded: LoadedConfig) -> Iterator[RunFolder]:
    """Make the folder of a run; a run that is refused for its configuration before its first epoch leaves none."""
    run = RunFolder.create(loaded.config, loaded.preset)
    prepare_to_draw(loaded.config)
    try:
        yield run
    except Exception as error:
        if config_error_in(error) is not None and not _has_epochs(run):
            shutil.rmtree(run.path)
        raise


def _has_epochs(run: RunFolder) -> bool:
    return run.metrics_path.exists() and bool(read_metrics(run.metrics_path))


@contextmanager
def _told(run: RunFolder, console: Console) -> Iterator[None]:
    """Print at the end, also after Ctrl-C or a failure, where the checkpoint and the curve are and how to go on."""
    is_over, failed = False, False
    try:
        yield
        is_over = True
    except Exception as error:
        failed = config_error_in(error) is None
        raise
    finally:
        folder = _short(run.path)
        checkpoints = CheckpointFolder(run.checkpoints)
        lines = []
        if (run.checkpoints / "last").exists():
            lines.append(("checkpoint", _short(checkpoints.path / "last")))
            if (run.checkpoints / "best").exists():
                lines.append(("best so far", _short(checkpoints.path / "best")))
            if not is_over:
                lines.append(("go on", f"rlightning resume {folder}"))
            lines.append(("watch it", f"rlightning eval {folder} --video {folder}/policy.mp4"))
            if run.curve_path.exists():
                lines.append(("learning curve", _short(run.curve_path)))
        if failed and run.logs.is_dir():
            lines.append(("log", _short(run.logs)))
        if lines:
            console.print()
        for label, text in lines:
            console.print(f"[bold]{label:>14}[/]  {escape(text)}", soft_wrap=True, highlight=False)


def _short(path: Path) -> str:
    """Write a path relative to the current folder where it lies inside."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
