"""A user's own modules work from any folder, by name and by path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlightning import registry
from rlightning.configuring.imports import beside
from rlightning.configuring.load import load_config
from rlightning.errors import ConfigError

MODULE = """
from typing import ClassVar
from pydantic import Field
from rlightning.config import Section
from rlightning.policy.base_policy import BasePolicy
from rlightning.registry import register

LOADED = []
LOADED.append(__name__)

class Options(Section):
    horizon: int = Field(3, ge=1)

@register("policy", "{name}")
class Mine(BasePolicy):
    AlgoOptions: ClassVar = Options
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the user works in; what it registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    policies, modules = dict(registry._ENTRIES["policy"]), set(sys.modules)
    yield tmp_path
    registry._ENTRIES["policy"].clear()
    registry._ENTRIES["policy"].update(policies)
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def write_config(folder: Path, entry: str, policy: str, extra: str = "") -> str:
    (folder / "mine.yaml").write_text(
        f"env: {{name: CartPole-v1, num_envs: 2}}\nimports: ['{entry}']\npolicy:\n  type: {policy}\n{extra}"
    )
    return "mine.yaml"


def test_a_module_of_the_current_folder_is_found_by_name(folder: Path) -> None:
    (folder / "by_name.py").write_text(MODULE.format(name="by_name"))
    assert load_config(write_config(folder, "by_name", "by_name")).config.policy.type == "by_name"


def test_a_file_is_loaded_once_and_found_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "by_path.py").write_text(MODULE.format(name="by_path"))
    name = write_config(folder, "by_path.py", "by_path")
    loaded = load_config(name)
    # The resolved configuration has the absolute path: a run is resumed and evaluated from anywhere.
    assert loaded.config.imports == [str(folder / "by_path.py")]
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    (elsewhere / "resolved.yaml").write_text(
        f"env: {{name: CartPole-v1, num_envs: 2}}\nimports: ['{folder / 'by_path.py'}']\npolicy: {{type: by_path}}\n"
    )
    assert load_config("resolved.yaml").config.policy.type == "by_path"
    assert sys.modules["by_path"].LOADED == ["by_path"]


def test_a_file_may_be_called_like_a_module_that_exists(folder: Path) -> None:
    (folder / "json.py").write_text(MODULE.format(name="json_policy"))
    load_config(write_config(folder, "json.py", "json_policy"))
    assert not hasattr(sys.modules["json"], "LOADED")


def test_the_options_of_a_users_policy_are_checked(folder: Path) -> None:
    (folder / "checked.py").write_text(MODULE.format(name="checked"))
    name = write_config(folder, "checked.py", "checked", "  algo_cfg:\n    horizn: 5\n    horizon: 0\n")
    with pytest.raises(ConfigError) as caught:
        load_config(name)
    found = {problem.path: (problem.where, problem.suggestion) for problem in caught.value.problems}
    assert found == {
        "policy.algo_cfg.horizn": ("mine.yaml:6", "policy.algo_cfg.horizon"),
        "policy.algo_cfg.horizon": ("mine.yaml:7", ""),
    }


def test_what_a_module_raises_is_a_problem_with_its_line(folder: Path) -> None:
    (folder / "broken.py").write_text("x = 1\nraise RuntimeError('no licence')\n")
    with pytest.raises(ConfigError) as caught:
        load_config(write_config(folder, "broken.py", "ppo"), ["imports=[broken.py,not_there,missing.py]", "seed=-1"])
    messages = {problem.path: problem.message for problem in caught.value.problems}
    assert set(messages) == {"imports.0", "imports.1", "imports.2", "seed"}
    assert f"RuntimeError: no licence ({folder / 'broken.py'}:2)" in messages["imports.0"]
    assert "ModuleNotFoundError" in messages["imports.1"]
    assert str(folder / "missing.py") in messages["imports.2"]


def test_a_file_goes_to_workers_as_code_only_if_there_are_any(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rlightning.runtime import ray_backend

    sent: list[str] = []
    monkeypatch.setattr(ray_backend, "pickle_by_value", lambda module: sent.append(module.__name__))
    (folder / "travels.py").write_text(MODULE.format(name="travels"))
    (folder / "stays.py").write_text("")
    name = write_config(folder, "travels.py", "travels")
    load_config(name)
    assert sent == []
    load_config(name, ["cluster=ray", f"imports=[{folder}/travels.py,stays]"])
    assert sent == ["travels"]


def test_a_file_finds_a_module_beside_it_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "own_envs").mkdir()
    (folder / "own_envs" / "gait_of_walker.py").write_text("STRIDE = 3\n")
    source = "from gait_of_walker import STRIDE\n" + MODULE.format(name="walks")
    (folder / "own_envs" / "walker_of_mine.py").write_text(source)
    name = str(folder / write_config(folder, "own_envs/walker_of_mine.py", "walks"))
    load_config(name)
    loaded = sys.modules["walker_of_mine"]
    # Both travel to workers as code.
    assert {module.__name__ for module in beside(loaded)} == {"walker_of_mine", "gait_of_walker"}


def test_a_module_that_was_found_by_its_name_is_found_from_any_folder(folder: Path) -> None:
    (folder / "named_here.py").write_text(MODULE.format(name="named_here"))
    config = load_config(write_config(folder, "named_here", "named_here")).config
    assert config.imports == [str(folder / "named_here.py")]


ENVS = """
import os
from os import system
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

def make():
    raise AssertionError("called")
"""


@pytest.mark.parametrize("name", ["os:system", "envs_of_mine:system", "envs_of_mine:os.getcwd", "subprocess:Popen"])
def test_a_name_calls_nothing_but_envs(folder: Path, name: str) -> None:
    (folder / "envs_of_mine.py").write_text(ENVS)
    (folder / "mine.yaml").write_text(f"env: {{name: '{name}'}}\nimports: [envs_of_mine.py]\n")
    with pytest.raises(ConfigError, match="is no class of envs"):
        load_config("mine.yaml")


def test_functions_are_called_where_the_user_lists_their_module(folder: Path) -> None:
    (folder / "makers_of_mine.py").write_text(ENVS)
    sys.path.append(str(folder))
    for attribute, imports, allowed in (
        ("CartPoleEnv", "[]", True),
        ("make", "[]", False),
        ("make", "[makers_of_mine]", True),
    ):
        (folder / "mine.yaml").write_text(f"env: {{name: 'makers_of_mine:{attribute}'}}\nimports: {imports}\n")
        if allowed:
            load_config("mine.yaml")  # which does not call it
        else:
            with pytest.raises(ConfigError, match="is no class of envs"):
                load_config("mine.yaml")


@pytest.mark.parametrize(
    ("option", "text"),
    [("engine=asyncrl", "asynchronous engine is not in this"), ("env.backend=pettingzoo", "PettingZoo")],
)
def test_what_is_planned_is_no_misspelling(option: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as raised:
        load_config("ppo_cartpole", [option])
    (problem,) = raised.value.problems
    assert not problem.suggestion


def test_an_env_that_does_not_exist_is_refused_before_any_worker_starts() -> None:
    for cluster in ("local", "ray"):
        with pytest.raises(ConfigError, match="no env 'CartPol-v1'") as raised:
            load_config("ppo_cartpole", [f"cluster={cluster}", "env.name=CartPol-v1"])
        assert raised.value.problems[0].suggestion.startswith("CartPole")
