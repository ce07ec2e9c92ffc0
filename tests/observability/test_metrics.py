"""The catalogue of metrics."""

from __future__ import annotations

import pytest

from rlightning.observability.metrics import catalogue, register_metric, undescribed


def test_every_metric_has_a_section_and_a_sentence() -> None:
    for metric in catalogue():
        assert "/" in metric.name
        assert metric.meaning.endswith(".")


def test_what_is_neither_described_nor_the_users_own_is_found() -> None:
    names = ["train/policy_loss", "user/height", "eval/return_mean", "eval/return_mean/walk", "train/polcy_loss"]
    assert undescribed(names) == ["train/polcy_loss"]


def test_a_metric_can_be_described_once() -> None:
    metric = register_metric("test/height", "m", "Height of the robot.")
    assert metric in catalogue()
    assert undescribed(["test/height"]) == []
    assert register_metric("test/height", "m", "Height of the robot.") == metric
    with pytest.raises(ValueError, match="test/height"):
        register_metric("test/height", "cm", "Height of the robot.")
