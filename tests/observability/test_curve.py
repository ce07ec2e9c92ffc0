"""The learning curve as a picture and as text."""

from __future__ import annotations

import math
from pathlib import Path

from rlightning.observability.curve import draw_curve, points, text_curve

ROWS = [{"step": 100 * i, "episode/return_mean_100": float(i)} for i in range(1, 11)]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    rows = [*ROWS, {"step": 1000, "eval/return_mean": 9.0, "eval/return_std": 1.0}]
    assert draw_curve(rows, tmp_path / "curve.png", "title")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    assert draw_curve(ROWS, tmp_path / "curve.png", "lr_$x^$")


def test_without_numbers_nothing_is_drawn(tmp_path: Path) -> None:
    assert not draw_curve([], tmp_path / "curve.png", "title")
    assert not draw_curve([{"step": 1, "train/lr": 0.1}], tmp_path / "curve.png", "title")
    assert not (tmp_path / "curve.png").exists()
    assert text_curve([]) == ""
    assert text_curve(ROWS[:1]) == ""


def test_numbers_that_are_not_finite_are_left_out() -> None:
    rows = [{"step": 1, "x": math.nan}, {"step": 2, "x": math.inf}, {"step": 3, "x": 5.0}]
    assert points(rows, "x") == [(3, 5.0)]


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right() -> None:
    lines = text_curve(ROWS, width=10, height=4).splitlines()
    assert len(lines) == 4 + 2
    assert lines[0].startswith("10 ┤")
    assert lines[3].startswith(" 1 ┤")
    top, bottom = lines[0][4:], lines[3][4:]
    assert top[0] == " "
    assert top[-1] != " "
    assert bottom[0] != " "
    assert bottom[-1] == " "
    assert "1,000 env steps" in lines[-1]


def test_a_constant_is_a_straight_line() -> None:
    rows = [{"step": i, "episode/return_mean_100": 3.0} for i in range(5)]
    lines = [line for line in text_curve(rows, width=10, height=4).splitlines()[:4] if line.split("┤")[1].strip()]
    assert len(lines) == 1
