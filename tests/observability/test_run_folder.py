"""A run folder says what was run, and never mixes two runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from rlightning.config import Config, EnvConfig, LogConfig, OptimConfig, PolicyConfig, TrainConfig
from rlightning.configuring.load import load_config
from rlightning.errors import CheckpointError, ConfigError
from rlightning.observability import run_folder
from rlightning.observability.run_folder import RunFolder
from rlightning.observability.sinks import read_metrics


def make_config(save_dir: Path, **changes: object) -> Config:
    return Config(
        env=[EnvConfig(name="CartPole-v1", env_kwargs={"sutton_barto_reward": True})],
        policy=PolicyConfig(optim_cfg=OptimConfig(betas=(0.9, 0.95), eps=1e-5)),
        train=TrainConfig(save_dir=str(save_dir), batch_size=64),
        **{"log": LogConfig(backend=[]), **changes},
    )


def test_the_folder_tells_what_was_run(tmp_path: Path) -> None:
    config = make_config(tmp_path, seed=7)
    run = RunFolder.create(config, "ppo_cartpole")
    assert run.path.parent == tmp_path
    assert run.name.startswith("ppo_cartpole-")
    versions = json.loads((run.path / "versions.json").read_text())
    assert {"python", "platform", "torch", "numpy", "gymnasium", "ray", "rlightning", "git_commit"} <= set(versions)
    assert json.loads((run.path / "seeds.json").read_text()) == {"seed": 7, "evaluation_seed": 1_000_003}
    assert run.checkpoints.is_dir()
    assert run.logs.is_dir()


def test_the_configuration_comes_back_equal_by_both_ways(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    run = RunFolder.create(config, "ppo_cartpole")
    assert RunFolder.open(run.path) == run
    assert load_config(str(run.config_path)).config == config


@pytest.mark.parametrize(
    "value",
    [
        {0: "idle", 2: "walk", True: 3, 0.5: 4},  # keys that are no text
        [float("inf"), -float("inf"), 1e-20, 1e30],
        [
            "1e5",
            "1e-3",
            "0x10",
            "12:30",
            "2020-01-01",
            "yes",
            "null",
            "1_000",
            ".5",
            "1.e3",
        ],  # text that looks like more
        ["${seed}", "a$b", r"\${seed}", r"\\\${seed}", "${oc.env:HOME}", "\\"],  # no interpolations
        {"nested": [[1, {"deep": ["${x}", None]}]]},
    ],
)
def test_free_form_values_come_back_as_they_were(tmp_path: Path, value: object) -> None:
    env = EnvConfig(name="CartPole-v1", env_kwargs={"value": value})
    config = Config(env=[env], log=LogConfig(name="1e5"), train=TrainConfig(save_dir=str(tmp_path)))
    run = RunFolder.create(config, "ppo")
    # By repr, since True equals 1 and a list a tuple.
    assert repr(RunFolder.open(run.path).config) == repr(config)
    assert repr(load_config(str(run.config_path)).config) == repr(config)


def test_two_runs_of_the_same_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder.time, "strftime", lambda _: "20250131-120000")
    names = [RunFolder.create(make_config(tmp_path), "ppo").name for _ in range(3)]
    assert names == ["ppo-20250131-120000", "ppo-20250131-120000-2", "ppo-20250131-120000-3"]


def test_a_name_of_ones_own_is_kept_and_not_overwritten(tmp_path: Path) -> None:
    config = make_config(tmp_path, log=LogConfig(name="mine", backend=[]))
    assert [RunFolder.create(config, "ppo").name for _ in range(2)] == ["mine", "mine-2"]


def test_sinks_write_into_the_folder_and_a_resumed_run_is_marked(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(tmp_path), "ppo")
    sink = run.open_sinks()
    sink.log(10, {"train/lr": 1.0})
    sink.log(20, {"train/lr": 2.0})
    sink.close()
    run.open_sinks(resumed_at=10).close()
    assert read_metrics(run.metrics_path) == [{"step": 10, "train/lr": 1.0}]


def test_runs_that_share_a_folder_of_the_metric_service_are_told_apart(tmp_path: Path) -> None:
    log = LogConfig(name="mine", log_dir=str(tmp_path / "board"))
    for step in (8, 16):
        sink = RunFolder.create(make_config(tmp_path, log=log), "ppo").open_sinks()
        sink.log(step, {"train/lr": 1.0})
        sink.close()
    assert sorted(path.parent.relative_to(tmp_path) for path in tmp_path.rglob("events.*")) == [
        Path("board/mine/tensorboard"),
        Path("board/mine-2/tensorboard"),
    ]


def test_what_is_not_a_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run folder"):
        RunFolder.open(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"no config\.yaml"):
        RunFolder.open(tmp_path)


def test_a_place_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"train\.save_dir: no folder for the run can be made in .*file: .+"):
        RunFolder.create(make_config(tmp_path / "file"), "ppo")


def test_a_configuration_that_was_spoilt_is_a_configuration_error(tmp_path: Path) -> None:
    run = RunFolder.create(make_config(tmp_path), "ppo")
    content = yaml.safe_load(run.config_path.read_text())
    content["train"]["batch_size"] = "64k"
    run.config_path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match="batch_size"):
        RunFolder.open(run.path)
