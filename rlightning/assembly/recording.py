"""The folder of a run while it is recorded: metrics, checkpoints, logs, and the learning curve at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rlightning.assembly.assemble import trains
from rlightning.assembly.run import RunContext, current_context
from rlightning.engine.recorder import FolderRecorder
from rlightning.errors import CheckpointError
from rlightning.observability.curve import draw_curve
from rlightning.observability.logs import log_to_console
from rlightning.observability.progress import ProgressDisplay
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import read_metrics
from rlightning.observability.trace import TraceFile

logger = logging.getLogger(__name__)


@contextmanager
def open_run(run: RunFolder, *, first_epoch: int = 0, resumed_at: int | None = None) -> Iterator[None]:
    """Record all that is built inside in the folder of a run; at the end the learning curve is drawn.

    Args:
        run: The folder.
        first_epoch: Epochs that are done already.
        resumed_at: Env steps of the checkpoint that the run goes on from; None for a new run.

    Raises:
        CheckpointError: If another process records in the folder.
    """
    config = run.config
    log_to_console(config.log.level)
    shown = ProgressDisplay(config.train.max_epochs, first_epoch, enabled=config.log.progress and trains(config))
    with _alone_in(run), shown as progress:
        sink = run.open_sinks(resumed_at)
        trace_file = TraceFile(run.trace_path) if config.log.trace else None
        recorder = FolderRecorder(sink, run.checkpoints, config.train.keep_checkpoints, progress.update, trace_file)
        token = current_context.set(RunContext(recorder, run.logs, run.path))
        is_over = False
        try:
            yield
            is_over = True
        except Exception:
            # The caller shows what a person needs of it; here nothing is left out.
            logger.exception("the run failed", extra={"in_file_only": True})
            raise
        finally:
            current_context.reset(token)
            try:
                sink.close()
            except Exception as error:
                if is_over:
                    raise
                # What the run ended with is what the caller must see.
                logger.warning("metrics may be lost, since closing failed: %s: %s", type(error).__name__, error)
            finally:
                _draw(run)


def _draw(run: RunFolder) -> None:
    """Draw the learning curve; where that fails, the run ends as it would have ended."""
    try:
        draw_curve(read_metrics(run.metrics_path), run.curve_path, run.name)
    except Exception as error:
        logger.warning("the learning curve cannot be drawn: %s: %s", type(error).__name__, error)


@contextmanager
def _alone_in(run: RunFolder) -> Iterator[None]:
    """Lock the folder of a run for this process; the system unlocks it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows has none
        yield
        return
    with run.lock_path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CheckpointError(
                f"another process is at work in {run.path}: wait until it ends, or end it, and resume the run then"
            ) from error
        except OSError as error:
            logger.debug("%s is on a file system without locks: %s", run.path, error)
        yield
