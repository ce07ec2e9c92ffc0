"""The local log is append-only; services are optional."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from rlightning.config import LogConfig
from rlightning.errors import MissingDependency, RecordError
from rlightning.observability.sinks import JsonlSink, Sinks, TensorBoardSink, WandbSink, read_metrics, run_id


def test_lines_are_there_as_soon_as_they_are_logged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.log(256, {"train/lr": 0.1})
    assert json.loads(path.read_text())["train/lr"] == 0.1
    sink.close()
    sink.close()


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    sink = JsonlSink(path)
    with pytest.raises(RecordError, match=r"metrics\.jsonl cannot be written: No space left on device"):
        sink.log(1, {"a": 0.5})
    sink.close()


def test_numbers_come_back_exactly_and_non_finite_ones_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.log(1, {"a": 0.1 + 0.2, "b": math.inf, "c": -math.inf, "d": math.nan, "e": 1e-300})
    sink.close()
    (row,) = read_metrics(path)
    assert row["a"] == 0.1 + 0.2
    assert row["b"] == math.inf
    assert row["c"] == -math.inf
    assert math.isnan(row["d"])
    assert row["e"] == 1e-300
    # Other programs read it as well: JSON has no NaN.
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_resumed_run_appends_and_readers_leave_out_what_it_supersedes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JsonlSink(path)
    for step in (10, 20, 30):
        first.log(step, {"loss": float(step)})
    first.close()
    before = path.read_bytes()

    # The newest checkpoint is that of step 20: step 30 is lost and done again.
    second = JsonlSink(path)
    second.mark_resumed(20)
    second.log(30, {"loss": -30.0})
    second.close()

    assert path.read_bytes().startswith(before)
    assert read_metrics(path) == [{"step": 10, "loss": 10.0}, {"step": 20, "loss": 20.0}, {"step": 30, "loss": -30.0}]


def test_steps_that_a_resumed_run_has_not_reached_yet_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    for step in (10, 20, 30):
        sink.log(step, {"loss": 1.0})
    sink.mark_resumed(10)
    sink.close()
    assert [row["step"] for row in read_metrics(path)] == [10]


def test_a_line_that_a_crash_cut_is_skipped_and_not_joined_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10, "loss": 1.0}\n{"step": 20, "lo')
    sink = JsonlSink(path)
    sink.log(20, {"loss": 2.0})
    sink.close()
    assert read_metrics(path) == [{"step": 10, "loss": 1.0}, {"step": 20, "loss": 2.0}]


def test_metrics_of_one_step_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.log(10, {"a": 1.0, "b": 1.0})
    sink.log(10, {"b": 2.0})
    sink.close()
    assert read_metrics(path) == [{"step": 10, "a": 1.0, "b": 2.0}]


class Service:
    """A metric service that fails when it is used, or when it is closed."""

    def __init__(self, *, fails_to_log: bool) -> None:
        self.fails_to_log, self.calls, self.closed = fails_to_log, 0, False

    def log(self, step: int, metrics: object) -> None:
        self.calls += 1
        if self.fails_to_log:
            raise ConnectionError("no route to host")

    def close(self) -> None:
        self.closed = True
        raise OSError("disk full")


def test_a_service_that_fails_is_left_out_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken, last = Service(fails_to_log=True), Service(fails_to_log=False)
    sinks = Sinks(JsonlSink(tmp_path / "metrics.jsonl"), [broken, last])
    for step in (10, 20):
        sinks.log(step, {"train/loss": 1.0})
    assert (broken.calls, last.calls) == (1, 2)
    assert caplog.text.count("no route to host") == 1
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [10, 20]
    sinks.close()
    assert last.closed
    assert "disk full" in caplog.text


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_event_files(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.log(10, {"train/lr": 0.1})
    sink.close()
    assert [path for path in tmp_path.iterdir() if "tfevents" in path.name]


def test_a_missing_service_names_the_extra_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingDependency, match=r"rlightning\[wandb\]"):
        WandbSink(LogConfig(), "run", tmp_path, {})


def test_any_name_of_a_run_has_an_id_that_services_take() -> None:
    assert run_id("ppo_cartpole-20250131") == "ppo_cartpole-20250131"
    ids = [run_id(name) for name in ("go1: lr=3e-4", "go1; lr=3e-4", "läuft#1?", "x" * 300)]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", each) for each in ids)
    assert len(set(ids)) == 4
