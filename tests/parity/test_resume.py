"""A run that stops and goes on in a new process is the run that did not stop."""

import json
import subprocess
import sys

import pytest

from rlightning.config import Config, EnvConfig, PolicyConfig, TrainConfig
from rlightning.observability.run_folder import to_yaml
from tests.engine.doubles import config as small_config
from tests.parity.stretch import run


def ppo(**train):
    return Config(
        env=[EnvConfig(name="CartPole-v1", num_workers=2, num_envs=2)],
        policy=PolicyConfig(
            model_cfg={"normalize_observation": True, "hidden_sizes": [16]},
            algo_cfg={"scale_reward": True, "clip_schedule": "linear", "update_epochs": 2},
            optim_cfg={"name": "adam", "schedule": "linear"},
        ),
        train=TrainConfig(**{"max_epochs": 100, "max_rollout_steps": 16, "batch_size": 32, "lr": 1e-3, **train}),
    )


def coin():
    return small_config(max_epochs=100, env={"num_workers": 2, "env_kwargs": {"lengths": [3, 7]}})


def replay():
    return small_config(max_epochs=100, policy={"type": "replay"}, env={"env_kwargs": {"lengths": [3, 7], "mean": 5.0}})


def resume_in_a_new_process(config, at, until, folder):
    """Run to ``at`` here and on to ``until`` in a new process; gives the two reports."""
    for name in ("first", "second"):
        (folder / name).mkdir()
    (folder / "config.yaml").write_text(to_yaml(config))
    first = run(config, at, folder / "first")
    program = [sys.executable, "-m", "tests.parity.stretch", "config.yaml", "second", str(until), "first/state"]
    paths = [str(folder / arg) if "/" in arg or arg in ("config.yaml", "second") else arg for arg in program[3:]]
    done = subprocess.run([*program[:3], *paths], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return first, json.loads((folder / "second" / "report.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(ppo(), id="ppo"),
        pytest.param(coin(), id="exploration schedule", marks=pytest.mark.exhaustive),
        pytest.param(replay(), id="off-policy"),
    ],
)
@pytest.mark.timeout(400)
def test_20_updates_are_10_and_10_more_in_a_new_process(config, tmp_path):
    straight = run(config, 20)
    first, second = resume_in_a_new_process(config, 10, 20, tmp_path)
    assert (len(first["rows"]), len(second["rows"])) == (10, 10)
    # Per update: losses, learning rate, returns, counters; at the end, all digests.
    assert [*first["rows"], *second["rows"]] == straight["rows"]
    assert {**second, "rows": straight["rows"]} == straight


def test_what_the_rows_compare_is_there():
    names = set(run(ppo(), 1)["rows"][0])
    assert {"train/policy_loss", "train/value_loss", "train/lr", "policy/version", "train/approx_kl"} <= names
    assert {"train/policy_loss", "user/epsilon"} <= set(run(coin(), 1)["rows"][0])


def test_the_memory_of_an_off_policy_learner_reaches_further_back_than_a_rollout():
    # 5 steps of 2 envs are 10 rows per update; the memory keeps 64.
    memory = [row["user/memory"] for row in run(replay(), 8)["rows"]]
    assert memory == [10, 20, 30, 40, 50, 60, 64, 64]


def test_the_exploration_schedule_goes_on_where_it_stopped(tmp_path):
    # It is multiplied by 0.9 per update and starts at 1.
    out = tmp_path / "out"
    out.mkdir()
    run(coin(), 3, out)
    rows = run(coin(), 5, checkpoint=out / "state")["rows"]
    assert [row["user/epsilon"] for row in rows] == pytest.approx([0.9**4, 0.9**5])


@pytest.mark.timeout(300)
def test_the_rate_after_a_stop_at_50_of_100_goes_on_at_half(tmp_path):
    tiny = ppo(max_rollout_steps=2, batch_size=8, lr=1e-3)
    first = run(tiny, 50, tmp_path)
    second = run(tiny, 51, checkpoint=tmp_path / "state")
    assert first["rows"][0]["train/lr"] == 1e-3
    assert first["rows"][49]["train/lr"] == pytest.approx(0.51e-3)
    assert [row["train/lr"] for row in second["rows"]] == pytest.approx([0.5e-3])
    assert second["epoch"] == 51
