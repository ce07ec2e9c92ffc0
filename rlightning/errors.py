"""Every error of the package: what happened, where, and what to do about it.

Each error also inherits the builtin that a caller would catch, and survives pickling, since errors cross processes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass


class RLightningError(Exception):
    """Root of all errors that this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        path: Dotted path of the option, such as ``train.lr``.
        message: What is wrong with it.
        where: File and line, or the argument of the command line; empty where unknown.
        suggestion: The nearest valid name; empty where there is none.
    """

    path: str
    message: str
    where: str = ""
    suggestion: str = ""

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}"
        if self.suggestion:
            text += f"; did you mean {self.suggestion!r}?"
        return f"{text} ({self.where})" if self.where else text


class ConfigError(RLightningError, ValueError):
    """A configuration that cannot be run; carries all problems at once."""

    def __init__(self, problems: str | Problem | list[Problem] | tuple[Problem, ...]) -> None:
        if isinstance(problems, str):
            problems = Problem("config", problems)
        if isinstance(problems, Problem):
            problems = [problems]
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]], dict[str, object]]:
        return type(self), (self.problems,), vars(self)


class PlacementError(RLightningError, RuntimeError):
    """The workers do not fit the cluster: what was asked, what is there, which option to change."""


class WorkerError(RLightningError, RuntimeError):
    """A call on a worker failed; the original exception is ``__cause__``.

    Attributes:
        worker: Who: role and index, such as ``env[3]``.
        method: The method that was called.
        node: The node that the worker lives on; ``local`` for this process.
    """

    def __init__(self, message: str, worker: str = "", method: str = "", node: str = "local") -> None:
        super().__init__(message, worker, method, node)
        self.message, self.worker, self.method, self.node = message, worker, method, node

    def on_node(self, node: str) -> WorkerError:
        """Say where the worker lives, if that was not known where the error was made; returns the error itself."""
        if self.node == "local":
            self.node = node
            self.args = (self.message, self.worker, self.method, node)
        return self

    def __str__(self) -> str:
        where = f"{self.worker or 'worker'}.{self.method}" if self.method else self.worker
        return f"{where} on node {self.node}: {self.message}" if where else self.message


def blame(error: BaseException, worker: str, method: str) -> None:
    """Write onto an exception whose call failed, where that is another worker than the one whose process it was."""
    with suppress(AttributeError):
        error._raised_by = (worker, method)  # type: ignore[attr-defined]


def raised_by(error: BaseException, worker: str, method: str) -> tuple[str, str]:
    """Give the worker and the method that ``blame`` wrote onto an exception, else the ones given."""
    who: tuple[str, str] = getattr(error, "_raised_by", (worker, method))
    return who


class WorkerDied(WorkerError):
    """The process of a worker is gone.

    Attributes:
        exit_code: Its exit code, or minus the signal that ended it; None where it is not known.
    """

    exit_code: int | None = None


class CallTimeout(RLightningError, TimeoutError):
    """Calls that did not answer in time: which, on whom, after how many seconds."""


class PeerLost(RLightningError, ConnectionError):
    """A rank of a communication group is gone, or went on without the others: which group, which rank noticed, when."""


class ShapeError(RLightningError, ValueError):
    """A tensor has the wrong shape: got, expected, and the names of the axes."""


class WeightSyncError(RLightningError, RuntimeError):
    """Weights did not arrive whole: version, sender, receivers, missing and unexpected keys."""


class NotEnoughData(RLightningError, ValueError):
    """More was asked of a buffer than it holds."""


class CheckpointError(RLightningError, RuntimeError):
    """A checkpoint cannot be used: which file, what is wrong with it, which older one is whole."""


class RecordError(RLightningError, OSError):
    """What a run records cannot be written: which file, and why."""


class ProtocolError(RLightningError, RuntimeError):
    """Calls in the wrong order: says which call to make first."""


class ReservedName(RLightningError, TypeError):
    """A class of an author uses a name that the framework needs: says which, and proposes another one."""


class UnsupportedSpace(RLightningError, TypeError):
    """An algorithm was given an observation or action space that it cannot serve."""


class MissingDependency(RLightningError, ImportError):
    """An optional package is not installed: names the extra that brings it."""
