"""The two proofs that a user can ask for: parity of placements, and of a resumed run."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from rlightning.checkpoint import save_state
from rlightning.commands.parity import Outcome, _verdict, check_parity, run_epochs, without_times
from rlightning.commands.states import differences, digest, tree_digest
from rlightning.commands.verify_resume import check_resume, compare
from rlightning.configuring.load import load_config
from rlightning.observability.sinks import JsonlSink

TINY = """
defaults: [ppo_cartpole]
env: {num_envs: 2}
train: {max_epochs: 8, max_rollout_steps: 8, batch_size: 8}
log: {backend: []}
"""
WHOLE = """
defaults: [ppo_cartpole]
env: {num_workers: 2, num_envs: 4, num_cpus: 0.01}
policy:
  model_cfg: {normalize_observation: true, hidden_sizes: [16]}
  algo_cfg: {scale_reward: true, clip_schedule: linear, target_kl: 0.05}
  optim_cfg: {schedule: linear}
  weight_buffer: {buffer_strategy: Shared, verify_interval: 1}
  train_num_cpus: 0.01
  eval_num_cpus: 0.01
train: {max_epochs: 8, max_rollout_steps: 16, batch_size: 32, check_ranks_interval: 1}
cluster: {train_worker_num: 2, eval_worker_num: 2, buffer_worker_num: 2}
log: {backend: []}
"""
"""All that has a state of its own: statistics, schedules, and several workers of each role."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    return tmp_path


def test_a_digest_depends_on_every_bit_on_dtype_and_on_shape() -> None:
    x = torch.tensor([1.0, 2.0])
    off = x.clone()
    off.view(torch.int32)[1] += 1
    different = [
        x,
        off,
        x.double(),
        x[None],
        x.numpy(),
        torch.tensor([0.0]),
        torch.tensor([-0.0]),
        1.0,
        1,
        True,
        None,
        "1",
    ]
    assert len({digest(leaf) for leaf in different}) == len(different)
    assert digest(x) == digest(x.clone())
    assert digest(torch.tensor(3)) == digest(torch.tensor(3))


def test_states_are_compared_leaf_by_leaf() -> None:
    left = {"a": [1.0, {"b": np.arange(3)}], "c": None, "d": {}}
    right = {"a": [1.0, {"b": np.arange(3) + 1}], "c": None, "e": 1}
    assert differences(left, left) == []
    assert differences(left, right) == ["a.1.b", "d", "e"]
    assert tree_digest({"x": 1, "y": 2}) == tree_digest({"y": 2, "x": 1})
    assert tree_digest(left) != tree_digest(right)


def test_a_verdict_names_the_first_epoch_that_differs() -> None:
    first = Outcome("p", "s", [{"loss": 1.0}, {"loss": 2.0, "kl": 3.0}])
    assert _verdict(first, Outcome("p", "s", [{"loss": 1.0}, {"loss": 2.0, "kl": 3.0}])) == ""
    other = Outcome("q", "t", [{"loss": 1.0}, {"loss": 2.5}])
    assert _verdict(first, other) == "first in epoch 2: loss, kl"
    assert "parameters" in _verdict(first, Outcome("q", "t", first.metrics))
    assert "optimizer" in _verdict(first, Outcome("p", "t", first.metrics))
    nan = Outcome("p", "s", [{"loss": float("nan")}])
    assert _verdict(nan, Outcome("p", "s", [{"loss": float("nan")}])) == ""


def test_two_runs_of_a_configuration_are_equal_and_another_seed_differs() -> None:
    config = load_config("tiny.yaml").config
    first, second = run_epochs(config, 3), run_epochs(config, 3)
    assert (first.parameters, first.metrics) == (second.parameters, second.metrics)
    assert first.env_steps == second.env_steps > 0
    other = run_epochs(config.model_copy(update={"seed": 1}), 3)
    assert other.parameters != first.parameters


def test_times_are_left_out() -> None:
    assert without_times({"time/total_s": 1.0, "train/lr": 2.0}) == {"train/lr": 2.0}


def make_stretch(folder: Path, steps: range, state: dict[str, object], loss: float = 1.0) -> Path:
    sink = JsonlSink(folder / "metrics.jsonl")
    for step in steps:
        sink.log(step, {"train/policy_loss": loss * step})
    sink.close()
    save_state(folder / "state", state)
    return folder


def make_state(**changes: object) -> dict[str, object]:
    train = {
        "epoch": 4,
        "modules": {"network.normalizer.mean": torch.ones(2), "network.actor.weight": torch.ones(3)},
        "optimizers": {"optimizer": {"state": {0: {"step": torch.tensor(4.0)}}}},
        "generator": torch.arange(4, dtype=torch.uint8),
        **changes,
    }
    return {"policy": {"train": train, "eval": []}, "env": [None], "engine": {"epoch": 4}}


def test_every_item_gets_a_verdict(tmp_path: Path) -> None:
    straight = make_stretch(tmp_path / "a", range(1, 5), make_state())
    first = make_stretch(tmp_path / "b", range(1, 3), make_state())
    resumed = make_stretch(tmp_path / "c", range(3, 5), make_state())
    verdicts = {item.name: item.verdict for item in compare(straight, first, resumed)}
    assert verdicts["train/policy_loss"] == "equal"
    assert verdicts["parameters and other buffers"] == "equal"
    assert verdicts["normalisers"] == "equal"
    assert verdicts["optimizer"] == "equal"
    assert verdicts["envs, with their random states"] == "not stored"


def test_what_differs_is_named(tmp_path: Path) -> None:
    straight = make_stretch(tmp_path / "a", range(1, 5), make_state())
    first = make_stretch(tmp_path / "b", range(1, 3), make_state())
    generator = torch.zeros(4, dtype=torch.uint8)
    resumed = make_stretch(tmp_path / "c", range(3, 5), make_state(generator=generator), loss=2.0)
    items = {item.name: item for item in compare(straight, first, resumed)}
    assert items["train/policy_loss"].verdict == "differs"
    assert "2 of 4 updates, first in update 3" in items["train/policy_loss"].detail
    assert items["learner's random state"].verdict == "differs"
    assert "policy.train.generator" in items["learner's random state"].detail
    assert items["parameters and other buffers"].verdict == "equal"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_resumed_in_a_new_process_equals_one_that_was_not_stopped() -> None:
    out = io.StringIO()
    equal = check_resume(load_config("tiny.yaml"), 2, 4, Console(file=out, width=200))
    assert equal, out.getvalue()
    assert "not stored" not in out.getvalue()
    for name in ("train/policy_loss", "train/lr", "optimizer", "normalisers", "envs, with their random states"):
        assert name in out.getvalue()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_local_remote_and_mixed_runs_of_a_configuration_are_equal_in_all_that_is_stored(
    ray_cluster: None, folder: Path
) -> None:
    (folder / "whole.yaml").write_text(WHOLE)
    out = io.StringIO()
    equal = check_parity(load_config("whole.yaml"), 3, Console(file=out, width=200))
    assert equal, out.getvalue()
    rows = [line.split() for line in out.getvalue().splitlines() if line.startswith(("local", "remote", "mixed"))]
    assert [row[0] for row in rows] == ["local", "remote", "mixed"]
    assert len({(row[1], row[2]) for row in rows}) == 1
