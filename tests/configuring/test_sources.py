"""Where an option was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlightning.configuring.sources import Sources


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(
        "\n".join(
            [
                "base: &base",
                "  lr: 1",
                "  x: 1",
                "train:",
                "  <<: *base",
                "  lr: 2",
                "envs:",
                "  - name: a",
                "  - name: b",
            ]
        )
    )
    (tmp_path / "b.yaml").write_text("lr: 3\n")
    found = Sources()
    found.record_file(tmp_path / "a.yaml", "")
    return found


def test_lines_of_mappings_lists_and_merge_keys(sources: Sources) -> None:
    assert sources.find("train.lr") == "a.yaml:6"
    assert sources.find("train.x") == "a.yaml:3"
    assert sources.find("envs.1.name") == "a.yaml:9"
    # What was not written lies in the nearest section that was.
    assert sources.find("train.momentum.of.something") == "a.yaml:4"
    assert sources.find("nothing") == ""


def test_the_last_file_wins(sources: Sources, tmp_path: Path) -> None:
    sources.record_file(tmp_path / "b.yaml", "train")
    assert sources.find("train.lr") == "b.yaml:1"


def test_an_argument_covers_all_that_it_sets(sources: Sources) -> None:
    sources.record_argument("train", {"lr": 5}, "train={lr: 5}")
    assert sources.find("train.lr") == "command line: train={lr: 5}"
    assert sources.find("train.x") == "a.yaml:3"
    sources.record_argument("envs", [{"name": "c"}], "envs=[{name: c}]")
    assert sources.find("envs.0.name") == "command line: envs=[{name: c}]"
    assert sources.find("envs.1.name") == "command line: envs=[{name: c}]"


def test_a_section_that_only_an_argument_makes_comes_from_that_argument():
    sources = Sources({"policy": "mine.yaml:11"})
    sources.record_argument(
        "policy.weight_bufer.buffer_strategy", "Shared", "policy.weight_bufer.buffer_strategy=Shared"
    )
    assert sources.find("policy.weight_bufer") == "command line: policy.weight_bufer.buffer_strategy=Shared"
    assert sources.find("policy") == "mine.yaml:11"
