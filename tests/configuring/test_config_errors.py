"""C11: a configuration that cannot be run is refused with all that is wrong with it, where, and what was meant."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlightning import registry
from rlightning.commands.cli import app
from rlightning.configuring.load import load_config
from rlightning.errors import ConfigError, Problem


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user works in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems_of(preset: str, *overrides: str) -> dict[str, Problem]:
    with pytest.raises(ConfigError) as caught:
        load_config(preset, overrides)
    found = {problem.path: problem for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems)
    return found


def write(path: Path, lines: Sequence[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return path.name


def test_all_problems_are_reported_at_once_with_line_and_nearest_name(folder: Path) -> None:
    name = write(
        folder / "mine.yaml",
        [
            "defaults:",  # 1
            "  - ppo_cartpole",
            "  - _self_",
            "polcy:",  # 4
            "  type: ppo",
            "train:",  # 6
            "  learning_rat: 0.1",
            "  batch-size: 32",
            "  batch_size: 64k",
            "env:",  # 10
            "  num_workers: -1",
            "buffer:",  # 12
            "  batch_size: 32",
        ],
    )
    found = problems_of(name, "+train.foo=1", "train.max_epoch=3")
    assert {path: (problem.where, problem.suggestion) for path, problem in found.items()} == {
        "polcy": ("mine.yaml:4", "policy"),
        "train.learning_rat": ("mine.yaml:7", "train.lr"),
        "train.batch-size": ("mine.yaml:8", "train.batch_size"),
        "train.batch_size": ("mine.yaml:9", ""),
        "env.num_workers": ("mine.yaml:11", ""),
        "buffer.batch_size": ("mine.yaml:13", "train.batch_size"),
        "train.foo": ("command line: +train.foo=1", ""),
        "train.max_epoch": ("command line: train.max_epoch=3", "train.max_epochs"),
    }
    assert "whole number, got '64k'" in found["train.batch_size"].message
    assert "at least 1, got -1" in found["env.num_workers"].message
    # Nothing is near to "foo": what there is gets listed instead.
    assert "max_epochs" in found["train.foo"].message


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_an_unknown_option_is_refused_however_it_is_added(prefix: str) -> None:
    assert set(problems_of("ppo_cartpole", f"{prefix}train.foo=1", f"{prefix}foo.bar=1")) == {"train.foo", "foo"}


def test_the_options_of_the_policy_are_checked_too(folder: Path) -> None:
    name = write(
        folder / "mine.yaml",
        [
            "defaults: [ppo_cartpole, _self_]",
            "policy:",
            "  algo_cfg:",
            "    gama: 0.9",
            "    clip_range: -1.0",
            "  model_cfg:",
            "    activation: tahn",
        ],
    )
    found = problems_of(name, "policy.model_cfg.hidden_sizes=[64,wide]", "train.gamma=0.9")
    assert found["policy.algo_cfg.gama"].suggestion == "policy.algo_cfg.gamma"
    assert found["policy.algo_cfg.gama"].where == "mine.yaml:4"
    assert found["policy.algo_cfg.clip_range"].where == "mine.yaml:5"
    assert found["policy.model_cfg.activation"].suggestion == "tanh"
    assert found["policy.model_cfg.hidden_sizes.1"].where == "command line: policy.model_cfg.hidden_sizes=[64,wide]"
    assert found["train.gamma"].suggestion == "policy.algo_cfg.gamma"
    assert len(found) == 5


def test_free_form_sections_stay_free() -> None:
    config = load_config("ppo_cartpole", ["env.env_kwargs.anything={a: [1, 2]}", "env.env_kwargs.other=x"]).config
    assert config.env[0].env_kwargs == {"anything": {"a": [1, 2]}, "other": "x"}


def test_what_the_simulator_knows_of_its_part_is_reported_beside_all_else(folder: Path) -> None:
    found = problems_of("ppo_halfcheetah", "env.env_kwargs.ctrl_cost_wieght=0.2", "env.env_kwargs.frame_skip=0", "a=1")
    assert {path: problem.suggestion for path, problem in found.items()} == {
        "env.env_kwargs.ctrl_cost_wieght": "env.env_kwargs.ctrl_cost_weight",
        "env.env_kwargs.frame_skip": "",
        "a": "",
    }
    name = write(
        folder / "mine.yaml",
        ["env:", "  - {name: Ant-v5, backend: mujoco}", "  - name: Ant-v6", "    backend: mujoco"],
    )
    found = problems_of(name)
    assert (found["env.1.name"].where, found["env.1.name"].suggestion) == ("mine.yaml:3", "Ant-v5")
    found = problems_of(name, "env.1.name=Ant-v5", "env.1.env_kwargs.healthy_reword=2")
    assert found["env.1.env_kwargs.healthy_reword"].suggestion == "env.1.env_kwargs.healthy_reward"


def test_unknown_names_are_reported_beside_all_else() -> None:
    found = problems_of(
        "ppo_cartpole", "policy.type=pppo", "env.backend=gymnasum", "buffer.type=rolout", "engine=synchrl", "seed=x"
    )
    assert {path: problem.suggestion for path, problem in found.items()} == {
        "policy.type": "ppo",
        "env.backend": "gymnasium",
        "buffer.type": "rollout",
        "engine": "syncrl",
        "seed": "",
    }


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("buffer.auto_truncate_episode=false", "keeping open episodes"),
    ],
)
def test_what_this_version_does_not_do_is_refused_by_name(override: str, word: str) -> None:
    # A typo elsewhere does not hide it.
    found = problems_of("ppo_cartpole", override, "train.foo=1")
    path = override.partition("=")[0]
    assert set(found) == {path, "train.foo"}
    assert word in found[path].message
    assert "not in this version" in found[path].message


def test_options_that_contradict_each_other_are_refused() -> None:
    assert load_config("ppo_cartpole", ["train.max_rollout_steps=32", "buffer.capacity=32"])
    assert set(problems_of("ppo_cartpole", "train.max_rollout_steps=32", "buffer.capacity=31")) == {"buffer.capacity"}
    two = ["cluster.train_worker_num=2", "cluster.buffer_worker_num=2"]
    assert load_config("ppo_cartpole", [*two, "env.num_workers=2"])
    found = problems_of("ppo_cartpole", *two, "env.num_workers=1")["cluster.buffer_worker_num"]
    assert "more than there are env workers" in found.message
    found = problems_of("ppo_cartpole", "cluster.buffer_worker_num=2", "env.num_workers=2")["cluster.buffer_worker_num"]
    assert "more than cluster.train_worker_num" in found.message


def test_what_does_not_go_with_collecting_by_fragment_is_refused() -> None:
    near = ["cluster.placement.env_strategy=process-colocate", "env.num_workers=2"]
    assert load_config("ppo_cartpole", [*near, "cluster.eval_worker_num=2"])
    for overrides, path in (
        (["cluster.remote_env=true"], "cluster.placement.env_strategy"),
        (["cluster.eval_worker_num=3"], "cluster.eval_worker_num"),
        (["engine=rsl"], "engine"),
        (["policy.rollout_mode=async"], "policy.rollout_mode"),
    ):
        assert path in problems_of("ppo_cartpole", *near, *overrides)


def test_pools_are_checked_as_strictly_as_all_else() -> None:
    pool = "cluster.resource_pool.mine"
    found = problems_of("ppo_cartpole", f"{pool}.num_node=1", f"{pool}.components.trian=all", "cluster.needs.evn={}")
    assert found[f"{pool}.num_node"].suggestion == f"{pool}.num_nodes"
    assert found[f"{pool}.components.trian"].suggestion == "train"
    assert found["cluster.needs.evn"].suggestion == "cluster.needs.env"


def test_a_missing_value_is_named_with_the_section_that_lacks_it(folder: Path) -> None:
    name = write(folder / "mine.yaml", ["seed: 1", "env:", "  nam: CartPole-v1", "  num_envs: ???"])
    found = problems_of(name, "train.foo=1")
    assert found["env.name"].where == "mine.yaml:2"
    assert found["env.nam"].suggestion == "env.name"
    assert found["env.num_envs"].message == "needs a value"
    assert "train.foo" in found


def test_a_list_of_envs_is_reported_by_index(folder: Path) -> None:
    name = write(
        folder / "mine.yaml",
        ["env:", "  - name: CartPole-v1", "  - name: Acrobot-v1", "    num_env: 3", "    num_workers: 0"],
    )
    found = problems_of(name, "env.num_envs=3", "env.7.name=x")
    assert (found["env.1.num_env"].where, found["env.1.num_env"].suggestion) == ("mine.yaml:4", "env.1.num_envs")
    assert found["env.1.num_workers"].where == "mine.yaml:5"
    assert "say which one: env.0.num_envs" in found["env.num_envs"].message
    assert "no item '7'" in found["env.7.name"].message


def test_arguments_that_are_none_are_explained() -> None:
    found = problems_of(
        "ppo_cartpole", "train.lr", "seed=1,2", "hydra.run.dir=x", "~train.nothing", "clustr/x=y", "engine='rsl"
    )
    assert "key=value" in found["train.lr"].message
    assert found["train.lr"].suggestion == ""
    assert "not readable" in found["engine"].message
    assert "[a,b]" in found["seed"].message
    assert "hydra.run.dir" in found
    assert "not set" in found["train.nothing"].message
    assert "no such group" in found["clustr/x"].message


def test_a_choice_that_a_group_does_not_have_is_reported_beside_all_else() -> None:
    found = problems_of("ppo_cartpole", "cluster=rey", "train.foo=1")
    assert found["cluster"].suggestion == "ray"
    assert found["cluster"].where == "command line: cluster=rey"
    assert "train.foo" in found


def test_a_defaults_list_that_names_no_file_is_located(folder: Path) -> None:
    name = write(folder / "mine.yaml", ["defaults:", "  - cluster: rey", "  - _self_", "env: {name: CartPole-v1}"])
    (problem,) = problems_of(name).values()
    assert (problem.path, problem.where, problem.suggestion) == ("cluster", "mine.yaml:2", "ray")


@pytest.mark.parametrize(
    ("lines", "line"),
    [(["seed: 1", "env: [", "train: }"], 3), (["seed: 1", "seed: 2"], 2), (["- a list"], 1)],
    ids=["syntax", "duplicate key", "no mapping"],
)
def test_a_file_that_is_no_mapping_is_located(folder: Path, lines: list[str], line: int) -> None:
    (problem,) = problems_of(write(folder / "mine.yaml", lines)).values()
    assert problem.where == f"mine.yaml:{line}"


def test_an_unknown_preset_is_refused_with_the_nearest_name() -> None:
    (problem,) = problems_of("ppo_cartpol").values()
    assert problem.suggestion == "ppo_cartpole"
    (problem,) = problems_of("nothing/of/the/kind.yaml").values()
    assert "nothing/of/the/kind.yaml" in problem.message


def test_an_interpolation_that_leads_nowhere_is_located() -> None:
    found = problems_of("ppo_cartpole", "train.lr=${train.learning_rate}")
    assert found["train.lr"].where == "command line: train.lr=${train.learning_rate}"


def test_values_of_the_wrong_kind_say_what_to_write() -> None:
    found = problems_of("ppo_cartpole", "train.max_epochs=1e3", "log.name=5", "cluster.remote_env=yes", "train=5")
    assert set(found) == {"train", "log.name", "cluster.remote_env"}
    found = problems_of("ppo_cartpole", "train.max_epochs=1e3", "log.name=5", "cluster.remote_env=yes")
    assert "write 1000" in found["train.max_epochs"].message
    assert "quotes" in found["log.name"].message
    assert "true or false" in found["cluster.remote_env"].message


# C12, the part of the configuration: 0 means "only at the end", and less makes no sense.
def test_intervals_may_be_zero_and_not_negative() -> None:
    config = load_config("ppo_cartpole", ["train.save_interval=0", "train.eval_interval=0"]).config
    assert (config.train.save_interval, config.train.eval_interval) == (0, 0)
    found = problems_of("ppo_cartpole", "train.save_interval=-1", "train.eval_interval=2.5")
    assert set(found) == {"train.save_interval", "train.eval_interval"}


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "..", "/tmp/a"])
def test_the_name_of_a_run_is_no_path(name: str) -> None:
    assert list(problems_of("ppo_cartpole", f"log.name={name}")) == ["log.name"]


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        ("imports=null", "imports", "must be a list, got None"),
        ("imports=5", "imports", "must be a list, got 5"),
        ("policy.optim_cfg.betas=[0.9]", "policy.optim_cfg.betas.1", "needs a value"),
        ("policy.optim_cfg.betas=[0.9,1.0]", "policy.optim_cfg.betas.1", "must be less than 1.0, got 1.0"),
        ("seed=18446744073709551616", "seed", "must be less than 18446744073709551616, got 18446744073709551616"),
        ("cluster.call_timeout_s=inf", "cluster.call_timeout_s", "must be finite, got inf"),
        ("env.num_cpus=inf", "env.num_cpus", "must be finite, got inf"),
        (
            "cluster.needs.env.resources={lidar: -1}",
            "cluster.needs.env.resources.lidar",
            "must be at least 0.0, got -1",
        ),
    ],
)
def test_values_that_would_fail_after_the_start_are_refused_before(override: str, path: str, message: str) -> None:
    found = problems_of("ppo_cartpole", override)
    assert {path: problem.message for path, problem in found.items()} == {path: message}


def test_a_layer_has_a_unit_or_more() -> None:
    found = problems_of("ppo_cartpole", "policy.model_cfg.hidden_sizes=[64,0]")
    assert {path: problem.message for path, problem in found.items()} == {
        "policy.model_cfg.hidden_sizes": "a layer has at least 1 unit, got [64, 0]"
    }


ENVS = """
import gymnasium as gym
from os import system
from gymnasium.envs.classic_control import CartPoleEnv
from pathlib import Path
def make():
    return CartPoleEnv()
class Balance(CartPoleEnv):
    pass
class Other:
    def __init__(self):
        Path("called").touch()
def touch():
    Path("called").touch()
"""


@pytest.mark.parametrize(
    ("name", "imports", "refused"),
    [
        ("named_envs:Balance", [], ""),
        ("named_envs:make", ["named_envs"], ""),
        ("named_envs:touch", [], "taken from a module of yours that is listed under imports"),
        ("named_envs:Other", ["named_envs"], "is no class of envs, so that it is not called"),
        ("named_envs:system", ["named_envs"], "is no class of envs, so that it is not called"),
        ("subprocess:getoutput", ["named_envs"], "listed under imports"),
        ("os:getcwd", [], "is no class of envs, so that it is not called"),
        ("no_such_module:Env", [], "there is no module 'no_such_module'"),
    ],
)
@pytest.mark.parametrize("command", ["check", "train"])
def test_a_name_calls_only_envs_and_functions_of_listed_modules(tmp_path, monkeypatch, name, imports, refused, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.listed.discard("named_envs")
    monkeypatch.delitem(sys.modules, "named_envs", raising=False)
    (tmp_path / "named_envs.py").write_text(ENVS)
    if not refused and command == "train":
        load_config("ppo_cartpole", [f"env.name={name}", f"imports={imports}"])
        return
    done = CliRunner().invoke(app, [command, "ppo_cartpole", f"env.name={name}", f"imports={imports}"])
    assert (done.exit_code, refused in done.stderr) == (2 if refused else 0, True), done.stderr
    assert not (tmp_path / "called").exists()
    assert not (tmp_path / "runs").exists()
