"""What a run has besides its configuration."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from rlightning.engine.recorder import Recorder


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the parts of a run are given besides the configuration.

    Attributes:
        recorder: Takes metrics and checkpoints.
        log_dir: Folder of the log files of all processes.
        plan_dir: Folder that gets the plan of who sits where.
    """

    recorder: Recorder | None = None
    log_dir: Path | None = None
    plan_dir: Path | None = None


current_run: ContextVar[RunContext] = ContextVar("current_run", default=RunContext())  # noqa: B039 (it is frozen)
"""Set by ``launch``, so that a script need not pass it on."""
