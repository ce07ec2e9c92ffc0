"""What is installed from a wheel is whole."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGE, ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which a wheel of the package was unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(installed: Path, *arguments: str) -> str:
    """Run Python in an empty folder, where only the wheel's package can be found."""
    outside = installed.parent / "outside"
    outside.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_is_the_one_of_the_wheel(installed):
    assert run(installed, "-c", "import rlightning; print(rlightning.__file__)").startswith(str(installed))


def test_presets_and_groups_come_with_it(installed):
    inside = {path.relative_to(installed / "rlightning") for path in installed.rglob("*.yaml")}
    assert inside == {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.yaml")}
    assert inside


def test_type_checkers_see_its_types(installed):
    assert (installed / "rlightning" / "py.typed").is_file()


def test_the_command_works_from_any_folder(installed):
    listed = run(installed, "-m", "rlightning", "presets")
    assert {preset.stem for preset in (PACKAGE / "conf").glob("*.yaml")} <= set(listed.split())


def test_the_command_has_its_name(installed):
    (entry_points,) = installed.glob("rlightning-*.dist-info/entry_points.txt")
    assert "rlightning = rlightning.commands.cli:main" in entry_points.read_text("utf-8")


def test_the_licence_comes_with_it(installed):
    (licence,) = installed.glob("rlightning-*.dist-info/licenses/LICENSE")
    assert licence.read_text("utf-8") == (ROOT / "LICENSE").read_text("utf-8")
