"""Log lines go to the terminal and to one file per process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlightning.observability.logs import log_to_console, log_to_file, stop_logging

logger = logging.getLogger("rlightning.test")


@pytest.fixture(autouse=True)
def _undo() -> Iterator[None]:
    yield
    stop_logging()


def test_each_place_has_a_level_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_console("warning")
    log_to_file(tmp_path / "logs" / "driver.log", "debug")
    logger.debug("a detail")
    logger.warning("a surprise")
    text = (tmp_path / "logs" / "driver.log").read_text()
    assert "a detail" in text
    assert "a surprise" in text
    assert capsys.readouterr().err == "WARNING rlightning.test: a surprise\n"


def test_a_line_for_the_file_alone_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_to_console("info")
    log_to_file(tmp_path / "driver.log", "info")
    logger.error("all of a traceback", extra={"in_file_only": True})
    assert "all of a traceback" in (tmp_path / "driver.log").read_text()
    assert capsys.readouterr().err == ""


def test_a_second_run_of_a_process_does_not_write_into_the_log_of_the_first(tmp_path: Path) -> None:
    log_to_file(tmp_path / "first.log", "info")
    logger.info("one")
    log_to_file(tmp_path / "second.log", "info")
    logger.info("two")
    assert "two" not in (tmp_path / "first.log").read_text()
    assert "one" not in (tmp_path / "second.log").read_text()
    assert "two" in (tmp_path / "second.log").read_text()


def test_warnings_of_python_are_logged(tmp_path: Path) -> None:
    log_to_file(tmp_path / "driver.log", "info")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("careful", UserWarning, stacklevel=1)
    assert "careful" in (tmp_path / "driver.log").read_text()


def test_the_level_can_be_changed(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_console("error")
    logger.warning("unheard")
    log_to_console("info")
    logger.info("heard")
    assert capsys.readouterr().err == "INFO rlightning.test: heard\n"
