"""A run that begins with the weights of an earlier one."""

import logging

import pytest
import torch

from rlightning.assembly.assemble import assemble
from rlightning.checkpoint import load_state
from rlightning.commands.run import resume
from rlightning.configuring.changes import open_folder
from rlightning.configuring.load import load_config
from rlightning.errors import ConfigError
from tests.deployment.kinds import KINDS, SHORT, train_kind, train_preset


def modules(folder):
    return load_state(folder / "checkpoints" / "last", ["policy"])["policy"]["train"]["modules"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_begins_with_weights_and_normalisers_of_another_one(kind, runs):
    first = runs(kind)
    preset, *own = KINDS[kind]
    config = load_config(preset, [*own, *SHORT, f"policy.init_from={first}"]).config
    with assemble(config) as engine:
        engine.start()
        state = engine.get_state()["policy"]
    expected = modules(first)
    assert state["train"]["modules"].keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(state["train"]["modules"][name], tensor), name
    assert (state["train"]["epoch"], state["train"]["version"]) == (0, 0)
    assert all(not optimizer["state"] for optimizer in state["train"]["optimizers"].values())


@pytest.mark.ray
def test_learners_elsewhere_begin_with_equal_weights(runs, ray_cluster):
    first = runs("vectors")
    overrides = ["cluster.remote_train=true", "cluster.train_worker_num=2", "policy.train_num_cpus=0.01"]
    config = load_config("ppo_cartpole", [*SHORT, *overrides, f"policy.init_from={first}"]).config
    with assemble(config) as engine:
        engine.start()
        assert engine.policy_group.verify_eval_weight_consistency(rtol=0)
        state = engine.get_state()["policy"]["train"]["modules"]
    assert all(torch.equal(state[name], tensor) for name, tensor in modules(first).items())


def test_a_fine_tuned_run_is_recorded_and_goes_on_without_the_first_one(tmp_path):
    first = train_kind("vectors", tmp_path / "first")
    second = train_preset("ppo_cartpole", *SHORT, f"policy.init_from={first}", folder=tmp_path)
    assert open_folder(second).config.policy.init_from == str(first)
    first.rename(tmp_path / "gone")
    resume(open_folder(second, ["train.max_epochs=3"], trains=True))
    assert load_state(second / "checkpoints" / "last", ["engine"])["engine"]["epoch"] == 3


def test_what_is_not_taken_is_logged(runs, caplog):
    first = runs("vectors")
    overrides = ["policy.model_cfg.share_encoder=true", "policy.model_cfg.hidden_sizes=[64,32]"]
    with (
        caplog.at_level(logging.WARNING),
        assemble(load_config("ppo_cartpole", [*SHORT, *overrides, f"policy.init_from={first}"]).config),
    ):
        pass
    said = caplog.text
    assert "[32, 64] torch.float32 stays as it is: it has [64, 64] torch.float32" in said
    assert "network.critic" in said
    assert "of it has no use" in said


@pytest.mark.parametrize(
    ("preset", "source", "message"),
    [
        ("ppo_cartpole", "nowhere", "policy.init_from: .*nowhere is neither the folder of a run nor"),
        ("ppo_pendulum", "first", "policy.init_from: its observation space is Box.*, of CartPole-v1, and that of Pend"),
    ],
)
def test_what_cannot_begin_a_run_is_refused(preset, source, message, tmp_path, runs):
    source = runs("vectors") if source == "first" else tmp_path / source
    with pytest.raises(ConfigError, match=message):
        train_preset(preset, *SHORT, f"policy.init_from={source}", folder=tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*"))
