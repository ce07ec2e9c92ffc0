"""Progress is a bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rlightning.observability import progress as progress_module
from rlightning.observability.progress import ProgressDisplay


def run_epochs(console: Console, total: int, first: int = 0, **options: bool) -> None:
    with ProgressDisplay(total, first, console=console, **options) as progress:
        for epoch in range(first + 1, total + 1):
            metrics = {
                "progress/env_steps": 1000.0 * epoch,
                "episode/return_mean_100": 2.0 * epoch,
                "time/env_steps_per_s": 5000.0,
            }
            if epoch == 1:
                metrics["eval/return_mean"] = 77.0
            progress.update(epoch, metrics)


def test_elsewhere_there_are_plain_lines_for_the_first_and_the_last_epoch() -> None:
    out = io.StringIO()
    run_epochs(Console(file=out, force_terminal=False, width=40), total=50)
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/50", "epoch 50/50"]
    # Not wrapped at the width of a terminal that is not there; the last evaluation stays in sight.
    assert lines[1] == "epoch 50/50  50,000 steps  return 100.0  eval 77.0  5,000 steps/s"
    assert lines[0].endswith("left")
    assert "\x1b" not in out.getvalue()


def test_in_between_there_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(float(second) for second in range(0, 10_000, 4))
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(now))
    out = io.StringIO()
    run_epochs(Console(file=out, force_terminal=False), total=30)
    assert 5 <= len(out.getvalue().splitlines()) < 20


def test_a_resumed_run_starts_where_it_was() -> None:
    out = io.StringIO()
    run_epochs(Console(file=out, force_terminal=False), total=50, first=40)
    assert [line.split("  ")[0] for line in out.getvalue().splitlines()] == ["epoch 41/50", "epoch 50/50"]


def test_it_can_be_switched_off() -> None:
    out = io.StringIO()
    run_epochs(Console(file=out, force_terminal=False), total=5, enabled=False)
    run_epochs(Console(file=out, force_terminal=True), total=5, enabled=False)
    assert out.getvalue() == ""


def test_on_a_terminal_there_is_a_bar() -> None:
    out = io.StringIO()
    run_epochs(Console(file=out, force_terminal=True, width=120, legacy_windows=False), total=5)
    assert "epoch 5/5" in out.getvalue()
    assert "return 10.0" in out.getvalue()
