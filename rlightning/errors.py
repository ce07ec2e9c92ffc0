"""The errors of the package. A message says what happened, where, and how to fix it.

Each error also inherits the builtin exception that a caller would catch. Each can be pickled, since errors cross
processes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


class RLightningError(Exception):
    """Base class of all errors of this package."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a configuration.

    Attributes:
        path: Dotted path of the option, such as ``train.lr``.
        message: Description of the fault.
        where: File and line, or the argument of the command line; empty if unknown.
        suggestion: The nearest valid name; empty if there is none.
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


def nearest_name(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ``prefix`` and the known name that is most similar to ``name``; empty if none is similar.

    >>> nearest_name("simpl", ["simple", "node_affinity"])
    'simple'
    """
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return prefix + nearest[0] if nearest else ""


class ConfigError(RLightningError, ValueError):
    """A configuration is not valid; the error lists all problems."""

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
    """The workers do not fit the cluster; the message has what was asked, what is free, and which option to change."""


class WorkerError(RLightningError, RuntimeError):
    """A call on a worker failed; the original exception is ``__cause__``.

    Attributes:
        worker: Role and index, such as ``env[3]``.
        method: The method that was called.
        node: The node of the worker; ``local`` for this process.
    """

    def __init__(self, message: str, worker: str = "", method: str = "", node: str = "local") -> None:
        super().__init__(message, worker, method, node)
        self.message, self.worker, self.method, self.node = message, worker, method, node

    def on_node(self, node: str) -> WorkerError:
        """Set the node of the worker if it was unknown where the error was raised; return this error."""
        if self.node == "local":
            self.node = node
            self.args = (self.message, self.worker, self.method, node)
        return self

    def __str__(self) -> str:
        where = f"{self.worker or 'worker'}.{self.method}" if self.method else self.worker
        return f"{where} on node {self.node}: {self.message}" if where else self.message


@contextmanager
def raising_as(worker: str, method: str) -> Iterator[None]:
    """Store worker and method in an exception of the block, for an object that another worker holds."""
    try:
        yield
    except Exception as error:
        with suppress(AttributeError):
            error._raised_by = (worker, method)  # type: ignore[attr-defined]
        raise


def call_failure(error: BaseException, worker: str, method: str, node: str = "local", note: str = "") -> WorkerError:
    """Return the error of a call that raised ``error``: with ``error`` as its cause, or itself if it is a WorkerError.

    Args:
        error: The exception.
        worker: The worker that was called; another one if ``raising_as`` stored one.
        method: The method likewise.
        node: The node of the worker.
        note: Further text.
    """
    if isinstance(error, WorkerError):
        failure = error.on_node(node)
    else:
        raiser: tuple[str, str] = getattr(error, "_raised_by", (worker, method))
        failure = WorkerError(f"{type(error).__name__}: {error}", *raiser, node)
        failure.__cause__ = error
    if note:
        failure.add_note(note)
    return failure


class WorkerDied(WorkerError):
    """The process of a worker has ended.

    Attributes:
        exit_code: Its exit code where it is known, as after ``sys.exit``; else None.
    """

    exit_code: int | None = None


class CallTimeout(RLightningError, TimeoutError):
    """Calls did not answer in time; the message has the calls, the workers, and the time limit in seconds."""


class PeerLost(RLightningError, ConnectionError):
    """A rank of a communication group has ended, or continued without the others.

    The message has the group, the rank that noticed it, and the time.
    """


class ShapeError(RLightningError, ValueError):
    """A tensor has the wrong shape; the message has both shapes and the names of the axes."""


class WeightSyncError(RLightningError, RuntimeError):
    """Weights did not arrive complete; the message has version, sender, receivers, missing and unexpected keys."""


class NotEnoughData(RLightningError, ValueError):
    """A buffer holds less than was requested."""


class CheckpointError(RLightningError, RuntimeError):
    """A checkpoint cannot be used; the message has the file, its fault, and the latest older one that is complete."""


class RecordError(RLightningError, OSError):
    """Records of a run cannot be written; the message has the file and the reason."""


class CallbackError(RLightningError, RuntimeError):
    """A callback failed; the cause is its exception."""


class ProtocolError(RLightningError, RuntimeError):
    """Calls in the wrong order; the message names the call to make first."""


class ReservedName(RLightningError, TypeError):
    """A user's class uses a name that the framework needs; the message proposes another one."""


class UnsupportedSpace(RLightningError, TypeError):
    """An algorithm does not support an observation or action space."""


class MissingDependency(RLightningError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""
