"""Which env workers are at fault, and their replacement."""

from __future__ import annotations

import logging
import time
from typing import Any

from rlightning.env.env_worker import EnvWorker, WorkerReport
from rlightning.env.faults import FaultCounts, FaultKind, HangGuard, RestartRules
from rlightning.errors import ConfigError, RLightningError, WorkerDied, WorkerError
from rlightning.runtime import as_handle
from rlightning.runtime.handle import WorkerHandle

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""Seconds that an env at fault gets to close."""
_BACK_OFF_S = 0.5
"""Seconds to wait after an env that could not be built; twice as long each time after."""


class Replacement:
    """Asks the workers of a group how they are, ends those that hang, and replaces those at fault.

    Args:
        handles: The workers by env id. The list is the group's own: the handle of a new worker is put into it.
        call_timeout_s: Seconds that a call may take; None waits for ever.
        rules: How workers are replaced.

    Attributes:
        counts: What happened to the workers so far.
        guard: Ends a worker whose reset or step takes too long; every one of them must be noted there.
    """

    def __init__(self, handles: list[WorkerHandle], call_timeout_s: float | None, rules: RestartRules) -> None:
        self._handles, self._timeout_s, self._rules = handles, call_timeout_s, rules
        self.counts = FaultCounts.none(len(handles))
        self.guard = HangGuard(rules.step_timeout_s, self._end_hanging)
        self._overdue: set[int] = set()  # workers whose process was ended here
        self._died: dict[int, WorkerDied] = {}

    @property
    def is_possible(self) -> bool:
        """Whether any worker may be replaced at all."""
        return any(self._rules.max_restarts)

    def is_ours(self, error: WorkerError) -> bool:
        """Return whether a failure is that of a worker of the group that may be replaced."""
        return error.worker in self._rules.names

    def reports(self) -> list[WorkerReport]:
        """Ask each worker how it is; one that hangs or is gone is at fault, too."""
        asked = [handle.call(EnvWorker.report) for handle in self._handles]
        reports = []
        for env_id, (handle, future) in enumerate(zip(self._handles, asked, strict=True)):
            try:
                reports.append(future.result(self._timeout_s))
            except WorkerDied as died:
                if died.worker != handle.name:  # the process is that of another worker
                    raise
                self._died[env_id] = died
                reports.append(self._report_of_dead(env_id, died))
        return reports

    def _report_of_dead(self, env_id: int, died: WorkerDied) -> WorkerReport:
        if env_id in self._overdue:
            limit = self._rules.step_timeout_s[env_id]
            return WorkerReport(0, "timed_out", f"a call took longer than env.step_timeout_s = {limit:g} s")
        code = "" if died.exit_code is None else f" with exit code {died.exit_code}"
        return WorkerReport(0, "died", f"its process died{code}")

    def replace(self, env_id: int, report: WorkerReport, env_name: str, step: int | None) -> None:
        """Replace a worker that is at fault; the new one has made no call yet.

        Args:
            env_id: The worker.
            report: What is wrong with it.
            env_name: What its env is called, for messages.
            step: Which step it is in, where that is known, for messages; 0 is the reset.

        Raises:
            WorkerError: Its fault, if it was replaced as often as it may be, or its first reset or step failed by a
                mistake in its code.
            ConfigError: If the env cannot be built any more as it is configured.
        """
        assert report.fault is not None
        handle, counts = self._handles[env_id], self.counts
        answers = report.fault in ("raised", "not_finite")
        message = report.message
        if not answers:
            where = "" if step is None else f" in step {step} of this worker" if step else " in reset"
            message = f"{env_name}: {message}{where}"
        counts.kinds[report.fault] = counts.kinds.get(report.fault, 0) + 1
        left = self._rules.max_restarts[env_id] - counts.restarts[env_id]
        if left <= 0 or (report.is_code_error and not counts.restarts[env_id]):
            self._raise_last(env_id, report.fault, message)
        self._count(env_id, message)
        if answers:
            try:
                handle.call(EnvWorker.close).result(_CLOSE_S)
            except RLightningError as failure:
                logger.warning("%s could not be closed: %s", handle.name, failure)
        self.guard.forget(env_id)
        self._handles[env_id] = as_handle(self._build(env_id, env_name), handle.name)
        self._overdue.discard(env_id)

    def _count(self, env_id: int, message: str) -> None:
        """Count a restart and log its reason."""
        counts = self.counts
        counts.restarts[env_id] += 1
        counts.generations[env_id] += 1
        logger.warning(
            "%s: %s; it is replaced, with episodes of generation %d and %d restarts left",
            self._handles[env_id].name,
            message,
            counts.generations[env_id],
            self._rules.max_restarts[env_id] - counts.restarts[env_id],
        )

    def _build(self, env_id: int, env_name: str) -> Any:
        """Build a new worker; what fails for a moment, such as a port that is busy, gets the restarts that are left."""
        handle, counts, wait_s = self._handles[env_id], self.counts, _BACK_OFF_S
        while True:
            try:
                return self._rules.build(env_id, handle.target, counts.generations[env_id])
            except Exception as failure:
                is_of_another = isinstance(failure, WorkerDied) and failure.worker != handle.name
                if is_of_another or isinstance(failure, ConfigError):
                    raise
                message = f"{env_name} cannot be built anew: {type(failure).__name__}: {failure}"
                counts.kinds["raised"] = counts.kinds.get("raised", 0) + 1
                if counts.restarts[env_id] >= self._rules.max_restarts[env_id]:
                    last = WorkerError(message, handle.name, "__init__")
                    self._note_restarts(env_id, last)
                    raise last from failure
            time.sleep(wait_s)
            wait_s *= 2
            self._count(env_id, message)

    def _end_hanging(self, env_id: int) -> None:
        self._overdue.add(env_id)
        self._handles[env_id].stop()

    def _raise_last(self, env_id: int, fault: FaultKind, message: str) -> None:
        """Raise the fault of a worker that was replaced as often as it may be."""
        handle = self._handles[env_id]
        try:
            if fault == "died":
                raise self._died[env_id]
            if fault == "timed_out":
                raise WorkerDied(message, handle.name)
            handle.call(EnvWorker.raise_fault).result(self._timeout_s)
        except WorkerError as last:
            self._note_restarts(env_id, last)
            raise

    def _note_restarts(self, env_id: int, last: WorkerError) -> None:
        restarts = self.counts.restarts[env_id]
        if restarts:
            name = self._handles[env_id].name
            last.add_note(f"{name} was replaced {restarts} times before (env.max_restarts)")
