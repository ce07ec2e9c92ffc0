"""Presets, groups and overrides make one configuration, from any folder."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium as gym
import pytest
import yaml

from rlightning.configuring import compose as compose_module
from rlightning.configuring.compose import PACKAGE_CONF, presets
from rlightning.configuring.load import load_config
from rlightning.errors import ConfigError
from rlightning.observability.run_folder import to_yaml

EXPECTED_PRESETS = {
    "ppo_acrobot": "Acrobot-v1",
    "ppo_ant": "Ant-v5",
    "ppo_cartpole": "CartPole-v1",
    "ppo_halfcheetah": "HalfCheetah-v5",
    "ppo_hopper": "Hopper-v5",
    "ppo_humanoid": "Humanoid-v5",
    "ppo_pendulum": "Pendulum-v1",
    "ppo_pixels": "rlightning/Catch-v0",
    "ppo_walker2d": "Walker2d-v5",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user works in; it has nothing to do with where the package lies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    return tmp_path


@pytest.mark.parametrize(("preset", "env"), EXPECTED_PRESETS.items())
def test_every_preset_is_valid_and_described(preset: str, env: str) -> None:
    config = load_config(preset).config
    assert [kind.name for kind in config.env] == [env]
    assert env.startswith("rlightning/") or env in gym.registry
    assert config.train.eval_interval > 0
    assert next(found for found in presets() if found.name == preset).description


def test_all_presets_are_known() -> None:
    assert set(EXPECTED_PRESETS) <= {preset.name for preset in presets()}


def test_groups_place_the_workers() -> None:
    def remote(*overrides: str) -> list[bool]:
        cluster = load_config("ppo_cartpole", overrides).config.cluster
        return [cluster.remote_env, cluster.remote_eval, cluster.remote_storage, cluster.remote_train]

    assert remote() == [False] * 4
    assert remote("cluster=ray") == [True] * 4
    assert remote("cluster=mixed") == [True, False, False, False]
    # A single option wins over the group, in whatever order they are written.
    assert remote("cluster.remote_eval=false", "cluster=ray") == [True, False, True, True]


def test_overrides_reach_one_env_and_a_list_of_envs() -> None:
    def num_envs(*overrides: str) -> list[int]:
        return [kind.num_envs for kind in load_config("ppo_cartpole", overrides).config.env]

    assert num_envs("env.num_envs=16") == [16]
    assert num_envs("env.0.num_envs=16") == [16]
    one = "env=[{name: CartPole-v1}]"
    assert num_envs(one, "env.num_envs=16") == [16]
    two = "env=[{name: CartPole-v1}, {name: CartPole-v1, num_envs: 2}]"
    assert num_envs(two, "env.0.num_envs=16") == [16, 2]


def test_sections_merge_and_lists_are_replaced() -> None:
    config = load_config("ppo_cartpole", ["policy.algo_cfg={gamma: 0.5}", "policy.optim_cfg.betas=[0.8, 0.9]"]).config
    assert config.policy.algo_cfg["gamma"] == 0.5
    assert config.policy.algo_cfg["update_epochs"] > 0
    assert config.policy.optim_cfg.betas == (0.8, 0.9)


def test_an_option_can_be_removed() -> None:
    assert "gamma" not in load_config("ppo_cartpole", ["~policy.algo_cfg.gamma"]).config.policy.algo_cfg


def test_interpolations_see_other_options_and_defaults() -> None:
    loaded = load_config("ppo_cartpole", ["train.eval_interval=${train.keep_checkpoints}", "seed=${env.num_envs}"])
    assert loaded.config.train.eval_interval == 3
    assert loaded.config.seed == loaded.config.env[0].num_envs


def test_a_folder_conf_is_searched_before_the_package(folder: Path) -> None:
    (folder / "conf" / "cluster").mkdir(parents=True)
    (folder / "conf" / "mine.yaml").write_text("# My own task\ndefaults: [ppo_cartpole, _self_]\nenv: {num_envs: 3}\n")
    (folder / "conf" / "ppo_acrobot.yaml").write_text("env: {name: Pendulum-v1}\n")
    (folder / "conf" / "cluster" / "many.yaml").write_text("eval_worker_num: 5\n")

    loaded = load_config("mine", ["cluster=many"])
    assert (loaded.config.env[0].name, loaded.config.env[0].num_envs) == ("CartPole-v1", 3)
    assert loaded.config.cluster.eval_worker_num == 5
    assert loaded.sources.find("env.num_envs") == "conf/mine.yaml:3"
    assert loaded.sources.find("cluster.eval_worker_num") == "conf/cluster/many.yaml:1"
    assert load_config("ppo_acrobot").config.env[0].name == "Pendulum-v1"
    own = {preset.name: preset.description for preset in presets()}
    assert own["mine"] == "My own task"
    assert "ppo_cartpole" in own


def test_a_folder_that_is_named_is_searched_first(folder: Path) -> None:
    for place, name in (("conf", "Pendulum-v1"), ("else where='x'", "Acrobot-v1")):
        (folder / place).mkdir()
        (folder / place / "mine.yaml").write_text(f"defaults: [{{cluster: ray}}]\nenv: {{name: {name}}}\n")
    assert load_config("mine").config.env[0].name == "Pendulum-v1"
    loaded = load_config("mine", config_dir="else where='x'")
    assert loaded.config.env[0].name == "Acrobot-v1"
    assert loaded.config.cluster.remote_train
    with pytest.raises(ConfigError, match="no folder"):
        load_config("mine", config_dir="nowhere")


def test_a_file_may_lie_anywhere_and_use_the_groups_of_the_package(folder: Path) -> None:
    path = folder / "deep" / "down" / "task.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("defaults: [{cluster: ray}, _self_]\nenv: {name: CartPole-v1, num_envs: 2}\n")
    loaded = load_config(str(path))
    assert loaded.preset == "task"
    assert loaded.config.cluster.remote_env
    assert load_config("deep/down/task.yaml", ["cluster=local"]).config.cluster.remote_env is False


def test_a_file_without_a_defaults_list_takes_groups_too(folder: Path) -> None:
    (folder / "task.yaml").write_text("env: {name: CartPole-v1, num_envs: 2}\n")
    assert load_config("task.yaml", ["cluster=ray"]).config.cluster.remote_env


def test_a_resolved_configuration_loads_to_an_equal_one(folder: Path) -> None:
    first = load_config("ppo_halfcheetah", ["policy.optim_cfg.eps=1e-7", "cluster=ray"]).config
    (folder / "resolved.yaml").write_text(to_yaml(first))
    assert load_config("resolved.yaml").config == first


def test_loading_leaves_the_program_as_it_was(folder: Path) -> None:
    from hydra.core.global_hydra import GlobalHydra

    before = Path.cwd()
    load_config("ppo_cartpole")
    assert Path.cwd() == before
    assert not GlobalHydra.instance().is_initialized()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("own", ["conf", "mine"])
def test_a_preset_of_the_package_stands_beside_own_ones(folder: Path, own: str) -> None:
    (folder / own / "cluster").mkdir(parents=True)
    (folder / own / "my_preset.yaml").write_text("defaults: [ppo_cartpole]\nseed: 5\n")
    (folder / own / "cluster" / "ray.yaml").write_text("train_worker_num: 3\n")
    config_dir = None if own == "conf" else folder / own
    assert load_config("ppo_cartpole", config_dir=config_dir).config.seed != 5
    assert load_config("my_preset", config_dir=config_dir).config.seed == 5
    # Groups of one's own are still found before those of the package.
    assert load_config("ppo_cartpole", ["cluster=ray"], config_dir).config.cluster.train_worker_num == 3


def test_threads_load_configurations_side_by_side() -> None:
    with ThreadPoolExecutor(8) as threads:
        seeds = threads.map(
            lambda seed: load_config("ppo_cartpole", [f"seed={seed}", "cluster=ray"]).config.seed, range(16)
        )
        assert list(seeds) == list(range(16))


def test_own_files_are_found_from_any_folder(folder: Path) -> None:
    (folder / "robot.xml").write_text("<mujoco/>")
    kwargs = "xml_file: ./robot.xml, other: ./no.xml, number: 3"
    (folder / "mine.yaml").write_text(f"env: {{name: CartPole-v1, env_kwargs: {{{kwargs}}}}}\n")
    found = load_config("mine.yaml").config.env[0].env_kwargs
    assert found == {"xml_file": str(folder / "robot.xml"), "other": "./no.xml", "number": 3}


def test_the_presets_are_readable_by_plain_yaml() -> None:
    for path in PACKAGE_CONF.rglob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text()), dict)
        assert path.read_text().startswith("# ")
    assert compose_module.group_options("cluster", [PACKAGE_CONF]) == ["local", "mixed", "ray"]
