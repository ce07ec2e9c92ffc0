"""A name in a configuration finds one class, and a wrong one is told the nearest."""

import subprocess
import sys

import pytest

from rlightning import registry
from rlightning.errors import ConfigError
from rlightning.registry import lookup, names, register


@pytest.fixture(autouse=True)
def _entries(monkeypatch):
    copied = {kind: dict(entries) for kind, entries in registry._ENTRIES.items()}
    monkeypatch.setattr(registry, "_ENTRIES", copied)


class First: ...


class Second: ...


def test_a_registered_class_is_found_under_its_name_and_is_unchanged():
    assert register("policy", "mine")(First) is First
    assert lookup("policy", "mine") is First
    assert "mine" in names("policy")
    assert "mine" not in names("buffer")


@pytest.mark.parametrize("kind", ["policy", "simulator", "buffer"])
def test_every_built_in_name_leads_to_a_class(kind):
    assert names(kind)
    assert all(isinstance(lookup(kind, name), type) for name in names(kind))


def test_a_name_is_given_once_but_the_same_class_may_come_again():
    register("policy", "mine")(First)
    register("policy", "mine")(First)
    with pytest.raises(ValueError, match=r"policy 'mine' is .*First already"):
        register("policy", "mine")(Second)
    with pytest.raises(ValueError, match=r"policy 'ppo' is rlightning\.algorithms\.ppo\.PPO already"):
        register("policy", "ppo")(Second)
    assert lookup("policy", "mine") is First


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'polcy' can be registered; kinds are policy, simulator, buffer"):
        register("polcy", "mine")


@pytest.mark.parametrize(
    ("kind", "name", "option", "nearest"),
    [
        ("policy", "pppo", "policy.type", "ppo"),
        ("simulator", "gymnasum", "env.backend", "gymnasium"),
        ("buffer", "nothing like it", "buffer.type", ""),
    ],
)
def test_an_unknown_name_is_a_problem_of_its_option_with_the_nearest_name(kind, name, option, nearest):
    with pytest.raises(ConfigError, match="known: ") as caught:
        lookup(kind, name)
    (problem,) = caught.value.problems
    assert (problem.path, problem.suggestion) == (option, nearest)


def test_built_in_classes_are_imported_when_they_are_asked_for():
    code = "import sys, rlightning.registry; print([m for m in sys.modules if m.startswith('rlightning.algo')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
