"""Importing the package costs nothing and says nothing; its public names appear when they are used."""

import subprocess
import sys

import pytest

import rlightning
from tests.architecture.source import ROOT

HEAVY = (
    "gymnasium",
    "hydra",
    "matplotlib",
    "mujoco",
    "numpy",
    "pydantic",
    "ray",
    "rich",
    "tensordict",
    "torch",
    "typer",
)


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("module", ["rlightning", "rlightning.errors"])
def test_importing_loads_nothing_heavy_and_prints_nothing(module):
    outcome = run(f"import sys, {module}; sys.exit(' '.join(sorted(set({HEAVY}) & set(sys.modules))) or 0)")
    assert (outcome.stdout, outcome.stderr, outcome.returncode) == ("", "", 0)


def test_every_public_name_is_there():
    for name in rlightning.__all__:
        assert getattr(rlightning, name) is not None


def test_a_name_that_does_not_exist_is_named():
    with pytest.raises(AttributeError, match="no attribute 'Polcy'"):
        rlightning.Polcy  # noqa: B018


def test_nothing_but_launch_needs_ray_to_be_imported():
    program = "import sys, rlightning.engine, rlightning.algorithms.ppo, rlightning.simulators.gymnasium; "
    outcome = run(program + "sys.exit('ray is loaded' if 'ray' in sys.modules else 0)")
    assert (outcome.stdout, outcome.stderr, outcome.returncode) == ("", "", 0)
