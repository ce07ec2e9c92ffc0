"""Destinations of metrics: a local append-only log, which is always written, and metric services."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from rlightning.config import LogConfig
from rlightning.errors import MissingDependency, RecordError

_LONGEST_ID = 100
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""JSON has no such numbers; they are written as text."""

_EVENT = "event"
_RESUMED = "resumed"

logger = logging.getLogger(__name__)


class MetricSink(Protocol):
    """A destination of metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write metrics.

        Args:
            step: Env steps since the start of the run.
            metrics: Numbers by the names of ``observability.metrics``.
        """

    def close(self) -> None:
        """Write what is buffered; may be called twice."""


class JsonlSink:
    """Appends one JSON object per call to a file and flushes it; lines are never changed.

    A run that is resumed from an older checkpoint appends a marker, and ``read_metrics`` skips the lines that it
    supersedes.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = _ends_inside_a_line(path)
        self._path = path
        self._file = path.open("a", encoding="utf-8")
        if torn:
            self._file.write("\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        numbers = {name: _storable(float(value)) for name, value in metrics.items()}
        self._append({"step": step, "time": round(time.time(), 3), **numbers})

    def mark_resumed(self, step: int) -> None:
        """Write that the run is resumed from a checkpoint of ``step`` env steps."""
        self._append({"step": step, "time": round(time.time(), 3), _EVENT: _RESUMED})

    def close(self) -> None:
        with suppress(OSError):  # ``log`` raised the error
            self._file.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise RecordError(f"{self._path} cannot be written: {error.strerror or error}") from error


class TensorBoardSink:
    """Writes event files for TensorBoard.

    Args:
        folder: Folder of the event files.
        resumed_at: Env steps of the checkpoint from which the run is resumed; later points are removed. None for a
            new run.
    """

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependency("tensorboard is not installed: pip install tensorboard") from error
        purge = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


def run_id(name: str) -> str:
    """Return an id of a run for W&B: its name, or with characters that W&B refuses, a similar name and a digest.

    >>> run_id("go1"), run_id("go1: lr=3e-4")
    ('go1', 'go1-lr-3e-4-4ae45ccb')
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)[:_LONGEST_ID]
    return name if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


class WandbSink:
    """Sends metrics to Weights & Biases.

    Args:
        config: Project and mode.
        name: Name of the run; its id follows from it, so that a resumed run continues its curves.
        folder: Folder of the local files.
        options: The resolved configuration, for display.
    """

    def __init__(self, config: LogConfig, name: str, folder: Path, options: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingDependency("wandb is not installed: pip install 'rlightning[wandb]'") from error
        self._run = wandb.init(
            project=config.project,
            name=name,
            id=run_id(name),
            dir=str(folder),
            mode=config.mode,
            resume="allow",
            config=dict(options),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        # The step of the service counts calls and never goes back; env steps are an axis of their own.
        self._run.log({**metrics, "progress/env_steps": step})

    def close(self) -> None:
        self._run.finish()


class Sinks:
    """The local log and metric services as one; a service that fails is removed, with a warning."""

    def __init__(self, local: MetricSink, services: Sequence[MetricSink] = ()) -> None:
        self._local, self._services = local, list(services)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._local.log(step, metrics)
        for service in list(self._services):
            try:
                service.log(step, metrics)
            except Exception as error:
                self._services.remove(service)
                _warn_of(service, error)

    def close(self) -> None:
        for service in self._services:
            try:
                service.close()
            except Exception as error:
                _warn_of(service, error)
        self._local.close()


def _warn_of(service: MetricSink, error: Exception) -> None:
    logger.warning(
        "%s gets no more metrics (%s: %s); the local log has all of them",
        type(service).__name__,
        type(error).__name__,
        error,
    )


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read a metrics log: one row per step, in the order of the steps, with ``step`` and all metrics of that step.

    Lines that a resumed run superseded and lines that a crash cut off are skipped; the last value of a step wins.
    """
    rows: dict[int, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            step = int(entry["step"])
        except (ValueError, KeyError, TypeError):
            continue
        if entry.get(_EVENT) == _RESUMED:
            rows = {known: row for known, row in rows.items() if known <= step}
            continue
        numbers = {name: _NOT_FINITE.get(value, value) for name, value in entry.items() if name != "time"}
        rows[step] = {**rows.get(step, {}), **numbers}
    return [rows[step] for step in sorted(rows)]


def _storable(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _ends_inside_a_line(path: Path) -> bool:
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
