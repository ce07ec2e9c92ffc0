"""The package grows by decision: a limit may be raised, with its reason in the changelog."""

import pytest

from tests.architecture.size import import_cycle, lines, lines_by_room, lines_of_tests, methods
from tests.architecture.source import SourceFile, source_files

FILES = source_files()
BY_NAME = {file.name: file for file in FILES}

ROOMS = {
    "__init__": 70,
    "__main__": 10,
    "algorithms": 660,
    "assembly": 1_450,
    "buffer": 810,
    "checkpoint": 370,
    "collect": 620,
    "commands": 1_580,
    "config": 430,
    "configuring": 1_530,
    "deployment": 560,
    "device": 40,
    "distributed": 770,
    "engine": 1_290,
    "env": 2_040,
    "errors": 200,
    "functional": 510,
    "launch": 70,
    "models": 990,
    "observability": 1_200,
    "placement": 1_650,
    "policy": 4_500,
    "registry": 130,
    "runtime": 1_740,
    "simulators": 3_390,
    "studies": 270,
    "types": 470,
    "weights": 2_300,
}
"""Most lines of each room, docstrings and comments among them."""

FILE_LINES, TEST_LINES = 500, 26_900


def test_each_room_keeps_to_its_lines():
    found = lines_by_room(FILES)
    assert found.keys() == ROOMS.keys()
    assert {name: count for name, count in found.items() if count > ROOMS[name]} == {}


def test_a_file_can_be_read_in_one_sitting():
    assert {file.name: lines(file) for file in FILES if lines(file) > FILE_LINES} == {}


def test_the_tests_do_not_grow_beside_the_package():
    assert lines_of_tests() <= TEST_LINES


@pytest.mark.parametrize(
    ("name", "file", "max_lines", "max_methods"),
    [("BasePolicy", "policy/base_policy.py", 500, 65), ("PolicyGroup", "policy/policy_group.py", 450, 40)],
)
def test_the_surface_of_the_policy_layer_is_small(name, file, max_lines, max_methods):
    assert lines(BY_NAME[file]) <= max_lines
    assert len(methods(BY_NAME[file], name)) <= max_methods


def test_no_module_imports_itself_by_way_of_others():
    assert import_cycle(FILES) == []


def test_a_cycle_is_found():
    first = SourceFile("env/one.py", "from rlightning.env import two")
    second = SourceFile("env/two.py", "from rlightning.env.one import thing")
    late = SourceFile("env/two.py", "def call():\n    from rlightning.env.one import thing")
    assert set(import_cycle([first, second])) == {"rlightning.env.one", "rlightning.env.two"}
    assert import_cycle([first, late]) == []


def test_methods_properties_and_aliases_count_and_setters_do_not():
    members = (
        "@property\n def a(self): ...",
        "@a.setter\n def a(self, x): ...",
        "def b(self): ...",
        "c = hooks.c",
        "d = 3",
    )
    assert methods(SourceFile("file.py", "\n ".join(("class A:", *members))), "A") == ["a", "b", "c"]
