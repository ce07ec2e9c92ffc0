"""The page of benchmarks shows the results that are kept, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import page

    yield page
    sys.modules.pop("page")


def test_the_page_is_that_of_the_results():
    done = subprocess.run([sys.executable, "benchmarks/page.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run python benchmarks/page.py"


def test_every_plot_of_the_page_is_there(page):
    text = page.PAGE.read_text(encoding="utf-8")
    drawn = {path.name for path in page.PLOTS.glob("*.svg")}
    assert drawn == {section.results + ".svg" for section in page.SECTIONS if f"{section.results}.svg" in text}


def test_a_section_without_results_is_left_out_and_a_cell_shows_the_range(page, monkeypatch, tmp_path):
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    (tmp_path / "startup.jsonl").write_text(
        '{"kind": "machine", "cores": 2, "cpu": "a cpu", "system": "a system"}\n'
        '{"kind": "startup", "arm": "train", "seconds": {"median": 4.0, "min": 3.5, "max": 5.25}}\n'
    )
    text = page.page()
    assert "## Starting" in text
    assert "4.00 (3.50 to 5.25)" in text
    assert "a cpu" in text
    assert text.count("\n## ") == 1
