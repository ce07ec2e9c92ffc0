"""The folder of a run: what was run, with which versions, what it measured, and where its checkpoints are."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
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

        It holds ``config.yaml`` (resolved; a run can be started from it), ``versions.json`` and ``seeds.json``.

        Args:
            config: What is run.
            preset: What the configuration was made from.
            name: Name of the folder in ``train.save_dir``; a number is appended where it is taken. Empty means
                ``log.name``, and if that is empty too, the preset and the time.

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
            CheckpointError: If it is not the folder of a run; says what is missing.
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
            told = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ConfigError(Problem("config", f"not readable: {told}", str(path))) from error
        return cls(path, config, preset)

    def keep_changes(self, command: str, epoch: int, changes: Mapping[str, tuple[Any, Any]], *, in_force: bool) -> None:
        """Append a line to ``changes.jsonl``: which command changed which options, and after which epoch.

        Args:
            command: "resume" or "eval".
            epoch: Finished epochs.
            changes: Dotted path -> value before and value now.
            in_force: Whether ``config.yaml`` becomes the configuration with the changes.
        """
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), "command": command, "epoch": epoch, "changes": changes}
        with (self.path / "changes.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if in_force:
            self._write_config()

    def _write_config(self) -> None:
        """Write ``config.yaml`` at once or not at all."""
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
        """A file that is never replaced, to be locked by the process at work in the folder."""
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
        """What each worker did when, with ``log.trace``."""
        return self.path / "trace.json"

    @property
    def curve_path(self) -> Path:
        """Picture of the learning curve."""
        return self.path / "curve.png"

    def open_sinks(self, resumed_at: int | None = None) -> MetricSink:
        """Open the local log and the metric services of the configuration.

        Args:
            resumed_at: Env steps of the checkpoint that the run goes on from; None for a new run.

        Raises:
            MissingDependency: If a metric service is not installed.
        """
        log = self.config.log
        # In a folder that runs share, each has its own: their curves would be one, and a resumed run takes points back.
        folder = Path(log.log_dir).expanduser() / self.name if log.log_dir else self.path
        services: list[MetricSink] = []
        if "tensorboard" in log.backend:
            services.append(TensorBoardSink(folder / "tensorboard", resumed_at))
        if "wandb" in log.backend:
            services.append(WandbSink(log, self.name, folder, self.config.model_dump(mode="json")))
        local = JsonlSink(self.metrics_path)
        if resumed_at is not None:
            local.mark_resumed(resumed_at)
        return Sinks(local, services)


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes that OmegaConf, which reads configurations, would take for a number: 1e5."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def to_yaml(config: Config) -> str:
    """Write a configuration as YAML that loads to an equal one."""
    return yaml.dump(
        _plain(config.model_dump()), Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None
    )


def _plain(value: Any) -> Any:
    """Give lists for tuples, and text in which OmegaConf looks for no interpolation."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    # A "${" is literal behind a backslash, and a backslash in front of that is one behind another.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def _make_unused(parent: Path, name: str) -> Path:
    """Make a folder that did not exist; two runs that start in the same second get two folders."""
    parent.mkdir(parents=True, exist_ok=True)
    for path in _candidates(parent, name):
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("there is always another number")


def _candidates(parent: Path, name: str) -> Iterator[Path]:
    yield parent / name
    for number in count(2):
        yield parent / f"{name}-{number}"


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
    """Ask git about the current folder; None where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, timeout=_LONGEST_GIT_CALL_S
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
