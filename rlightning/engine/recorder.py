"""Where the metrics and checkpoints of a run go."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlightning.checkpoint import locate, named_in, newest_whole, save_state
from rlightning.observability.sinks import MetricSink
from rlightning.observability.timer import Span
from rlightning.observability.trace import TraceFile

logger = logging.getLogger(__name__)


class Recorder(Protocol):
    """Keeps metrics and checkpoints.

    Attributes:
        folder: Folder of the run for further files; None where nothing is kept.
    """

    folder: Path | None

    def log(self, epoch: int, env_steps: int, metrics: Mapping[str, float]) -> None:
        """Keep metrics of one epoch: those of training, and those of an evaluation by a second call.

        Args:
            epoch: Finished epochs.
            env_steps: Transitions collected so far.
            metrics: Name -> number.
        """

    def save(self, epoch: int, states: Mapping[str, Any], *, best: bool) -> Path | None:
        """Keep a checkpoint; ``best`` marks it as the best so far. Returns its folder."""

    def trace(self, lanes: Mapping[str, Sequence[Span]]) -> None:
        """Keep what each worker did since the last call, by its name; only called with ``log.trace``."""


class SilentRecorder:
    """Remembers the latest metrics and keeps nothing else."""

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        self.folder: Path | None = None

    def log(self, epoch: int, env_steps: int, metrics: Mapping[str, float]) -> None:
        self.latest.update(metrics)

    def save(self, epoch: int, states: Mapping[str, Any], *, best: bool) -> Path | None:
        return None

    def trace(self, lanes: Mapping[str, Sequence[Span]]) -> None:
        return None


class FolderRecorder:
    """Writes metrics to a sink and checkpoints to a folder, and tells a display of each epoch."""

    def __init__(
        self,
        sink: MetricSink,
        checkpoints: Path,
        keep: int,
        on_epoch: Callable[[int, Mapping[str, float]], None] | None = None,
        trace_file: TraceFile | None = None,
    ) -> None:
        """Open the folder of checkpoints.

        Args:
            sink: Where metrics go.
            checkpoints: Folder of the checkpoints.
            keep: Newest checkpoints to keep, besides the best.
            on_epoch: Called with epoch and metrics after each epoch.
            trace_file: Where it goes what each worker did when.
        """
        self._trace_file = trace_file
        self.folder: Path | None = checkpoints.parent
        self._sink, self._store, self._on_epoch = sink, CheckpointFolder(checkpoints, keep), on_epoch

    def log(self, epoch: int, env_steps: int, metrics: Mapping[str, float]) -> None:
        self._sink.log(env_steps, metrics)
        if self._on_epoch is not None:
            self._on_epoch(epoch, metrics)

    def save(self, epoch: int, states: Mapping[str, Any], *, best: bool) -> Path | None:
        return self._store.save(epoch, states, best=best)

    def trace(self, lanes: Mapping[str, Sequence[Span]]) -> None:
        if self._trace_file is not None:
            self._trace_file.append(lanes)


class CheckpointFolder:
    """Checkpoints of one run, one folder each; ``last`` and ``best`` are links to two of them."""

    def __init__(self, path: Path, keep: int = 3) -> None:
        self.path, self._keep = path, keep

    def save(self, epoch: int, states: Mapping[str, Any], *, best: bool) -> Path:
        """Write a checkpoint, move the links, and remove what is too old.

        Raises:
            CheckpointError: If it cannot be written.
        """
        folder = save_state(self.path / f"epoch-{epoch:08d}", states)
        try:
            self._link("last", folder)
            if best:
                self._link("best", folder)
        except OSError as error:
            # The checkpoint is whole, and is found without a link.
            logger.warning("%s cannot be marked as last or best: %s", folder, error.strerror or error)
        self._remove_old(folder.name)
        return folder

    def last(self) -> Path:
        """Find the newest checkpoint that is whole.

        Raises:
            CheckpointError: If there is none.
        """
        return newest_whole(self.path)

    def best(self) -> Path | None:
        """Find the checkpoint that was marked as the best; None if none was, or if it is gone."""
        mark = self.path / "best"
        named = named_in(mark) if mark.is_file() else mark.resolve()
        return named if locate(named).is_dir() else None

    def _link(self, name: str, folder: Path) -> None:
        """Make a symbolic link, or where there are none, as on some network drives, a file with the folder's name."""
        fresh = self.path / f".{name}.new"
        fresh.unlink(missing_ok=True)
        try:
            fresh.symlink_to(folder.name)
        except OSError:
            fresh.write_text(f"{folder.name}\n", encoding="utf-8")
        fresh.replace(self.path / name)

    def _remove_old(self, newest: str) -> None:
        """Keep the newest ones up to ``newest``; a run that was resumed may have damaged ones of later epochs."""
        best = self.best()
        names = sorted(path.name for path in self.path.glob("epoch-*") if path.is_dir() and path.name <= newest)
        for name in names[: -self._keep]:
            if best is None or name != best.name:
                shutil.rmtree(self.path / name, ignore_errors=True)
