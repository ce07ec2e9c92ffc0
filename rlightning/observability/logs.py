"""Log lines: to the terminal, and to one file per process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TextIO

_FILE_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_CONSOLE_FORMAT = "%(levelname)s %(name)s: %(message)s"


class _ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes to the current ``sys.stderr``, which a progress display replaces."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(record, "in_file_only", False) and bool(super().filter(record))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _ProcessFileHandler(logging.FileHandler):
    """The log file of this process."""


def log_to_console(level: str) -> None:
    """Show log lines of this process on the terminal; a second call changes the level.

    Args:
        level: Least severe line that is shown: "debug", "info", "warning" or "error".
    """
    _remove(_ConsoleHandler)
    _add(_ConsoleHandler(), _CONSOLE_FORMAT, level)


def log_to_file(path: Path | str, level: str) -> None:
    """Append log lines and warnings of this process to a file; a second call changes the file.

    Args:
        path: The file; its folder is made.
        level: Least severe line that is written: "debug", "info", "warning" or "error".
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(_ProcessFileHandler)
    _add(_ProcessFileHandler(path, encoding="utf-8", delay=True), _FILE_FORMAT, level)
    logging.captureWarnings(True)


def stop_logging() -> None:
    """Undo ``log_to_console`` and ``log_to_file``."""
    _remove(_ConsoleHandler)
    _remove(_ProcessFileHandler)
    logging.captureWarnings(False)
    logging.getLogger("rlightning").setLevel(logging.NOTSET)


def _add(handler: logging.Handler, layout: str, level: str) -> None:
    handler.setFormatter(logging.Formatter(layout))
    handler.setLevel(level.upper())
    root = logging.getLogger()
    root.addHandler(handler)
    # The handlers filter, so that the levels of other libraries do not change.
    ours = [handler.level for handler in root.handlers if isinstance(handler, _ConsoleHandler | _ProcessFileHandler)]
    logging.getLogger("rlightning").setLevel(min(ours))


def _remove(kind: type[logging.Handler]) -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, kind)]:
        root.removeHandler(handler)
        handler.close()
