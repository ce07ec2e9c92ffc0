"""Options of a run that are changed when it goes on or is evaluated: which may change, and where that is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from rlightning.config import Config
from rlightning.configuring.load import load_config
from rlightning.errors import ConfigError, Problem
from rlightning.observability.run_folder import RunFolder

_FIXED = ("policy.type", "policy.model_cfg")
"""What the weights of a run were made with."""
_FIXED_IN_TRAINING = (
    *_FIXED,
    "seed",
    "env.*.name",
    "env.*.backend",
    "env.*.num_envs",
    "env.*.num_workers",
    "policy.optim_cfg.name",
    "cluster.train_worker_num",
    "cluster.eval_worker_num",
    "log.name",
    "train.save_dir",
)
"""What else the state of a run that goes on was made with."""


def open_folder(path: Path | str, overrides: Sequence[str] = (), *, trains: bool = False) -> RunFolder:
    """Open the folder of an earlier run, and load the modules that its configuration imports.

    Args:
        path: The folder.
        overrides: Changes to its configuration, ``key=value``; see ``keep_changes``.
        trains: Whether the run goes on, for which more has to stay as it is than for an evaluation.

    Raises:
        CheckpointError: If it is not the folder of a run.
        ConfigError: If the configuration cannot be run, or a change is one of what cannot change; lists all problems.
    """
    config = Path(path).expanduser() / "config.yaml"
    if not config.is_file():
        return RunFolder.open(path)
    loaded = load_config(str(config), overrides)
    run = RunFolder.open(path)
    if not overrides:
        return run
    changed = dataclasses.replace(run, config=loaded.config)
    fixed = _FIXED_IN_TRAINING if trains else _FIXED
    refused = [
        Problem(name, f"cannot change in {'a run that goes on' if trains else 'an evaluation'}: it {_was(before)}")
        for name, (before, _) in changes_between(run.config, loaded.config).items()
        if any(_is_within(name, pattern) for pattern in fixed)
    ]
    if refused:
        raise ConfigError(refused)
    return changed


def _is_within(path: str, pattern: str) -> bool:
    """Return whether a dotted path is a pattern's, or lies below it; ``*`` stands for one part."""
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) >= len(wanted) and all(b in ("*", a) for a, b in zip(parts, wanted, strict=False))


def changes_between(before: Config, after: Config) -> dict[str, tuple[Any, Any]]:
    """Compare two configurations: dotted path -> both values, None where there is none."""
    old, new = (dict(_leaves(config.model_dump(mode="json"))) for config in (before, after))
    return {path: (old.get(path), new.get(path)) for path in old | new if old.get(path) != new.get(path)}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """List the options below a path; a list is one option but for the list of envs."""
    if isinstance(value, list) and path == "env":
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _was(value: Any) -> str:
    return "was not set" if value is None else f"was {value}"


def keep_changes(run: RunFolder, command: str, epoch: int, console: Console) -> None:
    """Write into a run's folder, and say, what differs from its ``config.yaml``; a run that goes on gets a new one."""
    changes = changes_between(RunFolder.open(run.path).config, run.config)
    if not changes:
        return
    for name, (before, after) in changes.items():
        console.print(f"changed     {name}={after} ({_was(before)})", soft_wrap=True, markup=False)
    run.keep_changes(command, epoch, changes, in_force=command == "resume")
