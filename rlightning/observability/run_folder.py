"""The folder of a run: its configuration, versions, metrics, logs and checkpoints."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

import rlightning
from rlightning.config import Config
from rlightning.errors import CheckpointError, ConfigError, Problem
from rlightning.observability.sinks import JsonlSink, MetricSink, Sinks, TensorBoardSink, WandbSink

_CONFIG = "config.yaml"
_RUN = "run.json"
_PACKAGES = ("torch", "numpy", "gymnasium", "mujoco", "ray", "tensordict", "safetensors", "hydra-core", "pydantic")
_LONGEST_GIT_CALL_S = 5.0


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of a run.

    Attributes:
        path: The folder itself.
        config: The configuration of the run.
        preset: Name of the preset that it came from.
    """

    path: Path
    config: Config
    preset: str

    @classmethod
    def create(cls, config: Config, preset: str = "run", name: str = "") -> RunFolder:
        """Make the folder of a new run.

        It contains ``config.yaml`` (resolved; a run can be started from it), ``versions.json`` and ``seeds.json``.

        Args:
            config: The configuration of the run.
            preset: Name of the preset that it came from.
            name: Name of the folder in ``train.save_dir``; a number is appended if it exists. Empty means ``log.name``,
                and if that is empty too, the preset and the time.

        Raises:
            ConfigError: If the folder cannot be written.
        """
        name = name or config.log.name or f"{preset}-{time.strftime('%Y%m%d-%H%M%S')}"
        parent = Path(config.train.save_dir).expanduser().absolute()
        try:
            run = cls(_make_unused(parent, name), config, preset)
            run._write_config()
            _write_json(run.path / "versions.json", _versions())
            _write_json(run.path / "seeds.json", {"seed": config.seed, "evaluation_seed": config.evaluation.seed})
            _write_json(run.path / _RUN, {"preset": preset})
            run.checkpoints.mkdir()
            run.logs.mkdir()
        except OSError as error:
            message = f"no folder for the run can be made in {parent}: {error.strerror or error}"
            raise ConfigError(Problem("train.save_dir", message)) from error
        return run

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """Open the folder of an earlier run.

        Raises:
            CheckpointError: If it is not the folder of a run; the message has what is missing.
            ConfigError: If its configuration is not one of this version.
        """
        path = Path(path).expanduser().absolute()
        if not path.is_dir():
            raise CheckpointError(f"there is no run folder {path}")
        for name in (_CONFIG, _RUN):
            if not (path / name).is_file():
                raise CheckpointError(f"{path} is not the folder of a run: it has no {name}")
        try:
            config = Config.model_validate(OmegaConf.to_container(OmegaConf.load(path / _CONFIG), resolve=True))
            preset = str(json.loads((path / _RUN).read_text(encoding="utf-8"))["preset"])
        except (ValueError, KeyError, TypeError, OSError, yaml.YAMLError, OmegaConfBaseException) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ConfigError(Problem("config", f"not readable: {reason}", str(path))) from error
        return cls(path, config, preset)

    def keep_changes(self, command: str, epoch: int, changes: Mapping[str, tuple[Any, Any]], *, in_force: bool) -> None:
        """Append a line to ``changes.jsonl``: the command, the options that it changed, and the epoch.

        Args:
            command: "resume" or "eval".
            epoch: Finished epochs.
            changes: Dotted path -> previous value and new value.
            in_force: Whether to write the changed configuration to ``config.yaml``.
        """
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "command": command, "epoch": epoch, "changes": changes}
        with (self.path / "changes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if in_force:
            self._write_config()

    def _write_config(self) -> None:
        """Write ``config.yaml``, completely or not at all."""
        fresh = self.path / f".{_CONFIG}.new"
        header = f"# The resolved configuration of this run, made from {self.preset!r}.\n"
        fresh.write_text(header + to_yaml(self.config), encoding="utf-8")
        fresh.replace(self.config_path)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def config_path(self) -> Path:
        """The resolved configuration."""
        return self.path / _CONFIG

    @property
    def lock_path(self) -> Path:
        """A file that is never replaced; the process of the run locks it."""
        return self.path / _RUN

    @property
    def metrics_path(self) -> Path:
        """The append-only log of metrics."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Folder of the log files, one per process."""
        return self.path / "logs"

    @property
    def trace_path(self) -> Path:
        """The trace of all workers, with ``log.trace``."""
        return self.path / "trace.json"

    @property
    def curve_path(self) -> Path:
        """Picture of the learning curve."""
        return self.path / "curve.png"

    def open_sinks(self, resumed_at: int | None = None) -> MetricSink:
        """Open the local log and the metric services of the configuration.

        Args:
            resumed_at: Env steps of the checkpoint from which the run is resumed; None for a new run.

        Raises:
            MissingDependency: If a metric service is not installed.
        """
        log = self.config.log
        # Runs that share a folder have one each, since a resumed run removes points.
        folder = Path(log.log_dir).expanduser() / self.name if log.log_dir else self.path
        known: dict[str, Callable[[], MetricSink]] = {
            "tensorboard": lambda: TensorBoardSink(folder / "tensorboard", resumed_at),
            "wandb": lambda: WandbSink(log, self.name, folder, self.config.model_dump(mode="json")),
        }
        services = [known[name]() for name in dict.fromkeys(log.backend)]
        local = JsonlSink(self.metrics_path)
        if resumed_at is not None:
            local.mark_resumed(resumed_at)
        return Sinks(local, services)


class _Dumper(yaml.SafeDumper):
    """Quotes texts that OmegaConf, which reads configurations, would read as numbers: 1e5."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def to_yaml(config: Config) -> str:
    """Write a configuration as YAML that loads to an equal one."""
    return yaml.dump(
        _plain(config.model_dump()), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None
    )


def _plain(value: Any) -> Any:
    """Replace tuples by lists, and escape texts that OmegaConf would interpolate."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # A "${" after a backslash is literal, and so is a backslash after a backslash.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _make_unused(parent: Path, name: str) -> Path:
    """Make a new folder; two runs that start in the same second get two folders."""
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            path.mkdir()
            break
    return path


def _versions() -> dict[str, Any]:
    return {
        "rlightning": rlightning.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: _version(package) for package in _PACKAGES},
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed_files": _git("status", "--porcelain", "--untracked-files=no"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Return the output of git in the current folder; None without git or a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=_LONGEST_GIT_CALL_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
