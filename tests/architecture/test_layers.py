"""The import contract holds, and it would notice if it did not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    # The folder comes first in sys.path, so that a copy of the package is looked at and not the installed one.
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100)


def test_arrows_point_down_only():
    outcome = lint_imports(ROOT)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.fixture(scope="module")
def copy_of_the_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "rlightning", folder / "rlightning", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("room", "imported"),
    [
        ("env", "rlightning.policy"),
        ("buffer", "rlightning.env"),
        ("policy", "rlightning.engine"),
        ("weights", "rlightning.policy"),
        ("runtime", "rlightning.weights"),
        ("types", "rlightning.config"),
        ("config", "rlightning.runtime"),
        ("engine", "rlightning.assembly"),
        ("assembly", "rlightning.configuring"),
        ("configuring", "rlightning.commands"),
        ("engine", "rlightning.algorithms.ppo"),
        ("commands", "rlightning.simulators.gymnasium"),
        ("algorithms", "rlightning.buffer"),
        ("simulators", "rlightning.policy"),
        ("models", "rlightning.env"),
    ],
)
def test_an_arrow_that_points_up_is_noticed(copy_of_the_package, room, imported):
    place = copy_of_the_package / "rlightning" / room
    file = place / "wrong_way.py" if place.is_dir() else place.with_suffix(".py")
    before = file.read_text("utf-8") if file.exists() else None
    file.write_text(f"{before or ''}\nimport {imported}\n", "utf-8")
    try:
        outcome = lint_imports(copy_of_the_package)
    finally:
        if before is None:
            file.unlink()
        else:
            file.write_text(before, "utf-8")
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert f"-> {imported}" in outcome.stdout


@pytest.mark.slow
def test_a_new_room_needs_a_place(copy_of_the_package):
    room = copy_of_the_package / "rlightning" / "utils.py"
    room.write_text("", "utf-8")
    try:
        outcome = lint_imports(copy_of_the_package)
    finally:
        room.unlink()
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "rlightning.utils" in outcome.stdout
