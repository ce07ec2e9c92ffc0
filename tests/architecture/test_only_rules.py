"""Three things are done in one place only."""

import pytest

from tests.architecture.source import SourceFile, source_files

FILES = source_files()


def offenders(found_in, allowed):
    return sorted(file.name for file in FILES if found_in(file) and not file.name.startswith(allowed))


def imports_ray(file):
    return any(name == "ray" or name.startswith("ray.") for name in file.imported_modules())


def says_cuda(file):
    return "cuda" in file.text.lower()


def test_ray_is_imported_in_one_file():
    assert offenders(imports_ray, "runtime/ray_backend.py") == []


def test_cuda_is_written_in_one_file():
    assert offenders(says_cuda, "device.py") == []


def test_the_environment_is_read_at_the_border_only():
    assert offenders(SourceFile.reads_environment, ("commands/", "runtime/ray_backend.py")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import ray",
        "import numpy, ray as r",
        "from ray import get",
        "from ray.util import placement_group",
        "def late():\n    import ray.actor",
        "importlib.import_module('ray')",
    ],
)
def test_every_way_to_import_ray_is_seen(line):
    assert imports_ray(SourceFile("file.py", line))


@pytest.mark.parametrize("line", ["from rlightning.runtime.ray_backend import spawn", "import raylib", "ray = 3"])
def test_other_names_are_not_taken_for_ray(line):
    assert not imports_ray(SourceFile("file.py", line))


@pytest.mark.parametrize(
    "line", ["import os\nos.environ['A']", "from os import environ", "import os as o\no.getenv('A')"]
)
def test_every_way_to_read_the_environment_is_seen(line):
    assert SourceFile("file.py", line).reads_environment()


@pytest.mark.parametrize("line", ["environment = 3", "import os\nos.getpid()", "class A:\n    environs = 2"])
def test_other_names_are_not_taken_for_the_environment(line):
    assert not SourceFile("file.py", line).reads_environment()
