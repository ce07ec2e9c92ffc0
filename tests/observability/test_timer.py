"""The timer adds up what it should."""

from __future__ import annotations

import pytest

from rlightning.observability import timer as timer_module
from rlightning.observability.timer import Timer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Readings of the clock, taken from the front."""
    readings: list[float] = []
    monkeypatch.setattr(timer_module, "perf_counter", lambda: readings.pop(0))
    return readings


def test_count_total_and_average_per_name(clock: list[float]) -> None:
    timer = Timer()
    # rollout: 1 s and 3 s; train: 5 s.
    clock[:] = [0.0, 1.0, 10.0, 13.0, 20.0, 25.0]
    for name in ("rollout", "rollout", "train"):
        with timer.measure(name):
            pass
    assert timer.summary() == {
        "rollout": {"count": 2, "total": 4.0, "average": 2.0},
        "train": {"count": 1, "total": 5.0, "average": 5.0},
    }
    assert timer.total_s("rollout") == 4.0
    assert timer.total_s("never") == 0.0
    assert "never" not in timer.summary()


def test_measurements_of_one_name_may_nest(clock: list[float]) -> None:
    timer = Timer()
    # Outer from 0 to 10, inner from 2 to 5: 13 s in two measurements.
    clock[:] = [0.0, 2.0, 5.0, 10.0]
    with timer.measure("x"), timer.measure("x"):
        pass
    assert timer.summary()["x"] == {"count": 2, "total": 13.0, "average": 6.5}


def test_a_failure_is_measured_and_passed_on(clock: list[float]) -> None:
    timer = Timer()
    clock[:] = [0.0, 2.0]
    with pytest.raises(KeyError), timer.measure("x"):
        raise KeyError
    assert timer.total_s("x") == 2.0


def test_the_table_has_the_largest_total_first_and_reset_empties_it(clock: list[float]) -> None:
    timer = Timer()
    clock[:] = [0.0, 1.0, 0.0, 9.0]
    for name in ("small", "large"):
        with timer.measure(name):
            pass
    lines = timer.table("policy").splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["policy", "large"], ["policy", "small"]]
    assert lines[1].split()[2:] == ["1", "9.000", "9000.0000"]
    timer.reset()
    assert timer.summary() == {}
