"""Files for other programs act as the policy does."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from rlightning import load_policy
from rlightning.commands.cli import app
from rlightning.deployment.export import export_policy
from rlightning.errors import ConfigError, RLightningError
from rlightning.registry import register
from rlightning.types import PolicyResponse
from rlightning.types.tree import tree_leaves
from tests.deployment.kinds import KINDS, SHORT, train_preset
from tests.engine.policies import CoinPolicy

EXPORTED = [kind for kind in KINDS if kind != "recurrent"]


@pytest.fixture(scope="module")
def rt():
    return pytest.importorskip("onnxruntime", reason="the extra export is not installed")


@pytest.mark.parametrize("kind", EXPORTED)
def test_a_torchscript_file_acts_as_the_policy(kind, runs, tmp_path):
    policy = load_policy(runs(kind))
    exported = export_policy(policy, tmp_path / "policy.pt", "torchscript")
    assert exported.difference is not None
    assert exported.difference <= 1e-4
    extra = {"metadata.json": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch deprecate TorchScript
        file = torch.jit.load(tmp_path / "policy.pt", _extra_files=extra)
    metadata = json.loads(extra["metadata.json"])
    assert metadata["env"] == policy.meta.name
    assert metadata["weights_version"] == 2
    observation = policy.observation_space.sample()
    leaves = [np.asarray(leaf)[None] for leaf in tree_leaves(observation)]
    inputs = [torch.from_numpy(leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf) for leaf in leaves]
    for got, wanted in zip(file(*inputs), tree_leaves(policy.act(observation)), strict=True):
        np.testing.assert_allclose(got[0], wanted, atol=1e-4)


@pytest.mark.parametrize("kind", EXPORTED)
def test_an_onnx_file_acts_as_the_policy_and_says_what_it_is(kind, rt, runs, tmp_path):
    policy = load_policy(runs(kind))
    export_policy(policy, tmp_path / "policy.onnx", "onnx")
    session = rt.InferenceSession(tmp_path / "policy.onnx")
    names = {one.name: one.shape[0] for one in (*session.get_inputs(), *session.get_outputs())}
    assert set(names.values()) == {"N"}
    expected = {"observation.image", "observation.joints", "observation.mode"} if kind == "dict" else {"observation"}
    assert set(names) == {*expected, "action"}
    said = session.get_modelmeta().custom_metadata_map
    assert json.loads(said["rate_hz"]) == policy.meta.rate_hz
    assert len(said["weights_digest"]) == 64
    if kind == "mujoco":
        assert json.loads(said["action_names"]) == ["slide"]


def test_weights_alone_are_written_with_what_they_belong_to(runs, tmp_path):
    policy = load_policy(runs("recurrent"))
    assert export_policy(policy, tmp_path / "policy.safetensors", "safetensors").difference is None
    with safe_open(tmp_path / "policy.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("cell.bias_ih"), policy.policy.cell.bias_ih)
        assert file.metadata()["algorithm"] == "recurrent"
        assert json.loads(file.metadata()["observation_space"])["kind"] == "Box"


def test_what_no_file_can_hold_is_refused(runs, tmp_path):
    options = [
        "imports=[tests.engine.policies]",
        "policy={type: slow_coin, rollout_mode: async, model_cfg: {}, algo_cfg: {}}",
    ]
    awaiting = load_policy(train_preset("ppo_cartpole", *options, *SHORT, folder=tmp_path))
    with pytest.raises(ConfigError, match="SlowCoinPolicy answers by a coroutine"):
        export_policy(awaiting, tmp_path / "policy.onnx", "onnx")
    assert awaiting.action_space.contains(awaiting.act(np.zeros(4)))
    with pytest.raises(ConfigError, match="keeps a state per row"):
        export_policy(load_policy(runs("recurrent")), tmp_path / "policy.pt", "torchscript")
    with pytest.raises(ConfigError, match="must be one of onnx, torchscript, safetensors, got 'tflite'"):
        export_policy(load_policy(runs("vectors")), tmp_path / "policy.tflite", "tflite")


@register("policy", "branching")
class Branching(CoinPolicy):
    """Decides in Python what it does with a batch: a recording holds one of the two ways."""

    def rollout_step(self, env_ret, *, deterministic=False):
        action = super().rollout_step(env_ret, deterministic=True).action
        return PolicyResponse(1 - action if len(action) == 3 else action)


def test_a_file_that_acts_differently_is_not_kept(tmp_path):
    run = train_preset("ppo_cartpole", "policy={type: branching, model_cfg: {}, algo_cfg: {}}", *SHORT, folder=tmp_path)
    with pytest.raises(RLightningError, match="acts differently than the policy, by up to 1 on 1000 observations"):
        export_policy(load_policy(run), tmp_path / "policy.pt", "torchscript")
    assert list(tmp_path.glob("*policy.pt*")) == []


def test_the_command_says_what_it_wrote(runs):
    done = CliRunner().invoke(app, ["export", str(runs("vectors")), "--format", "torchscript"])
    assert done.exit_code == 0, done.output
    assert (runs("vectors") / "policy.pt").is_file()
    assert "observation in   float32 [N, 4]" in done.output
    assert "action      out  int64 [N]" in done.output
    assert "1,000 observations, largest difference of an action 0" in done.output
    wrong = CliRunner().invoke(app, ["export", str(runs("vectors")), "--format", "tflite"])
    assert wrong.exit_code == 2
    assert "must be one of onnx, torchscript, safetensors" in wrong.stderr


def test_the_examples_act_from_a_run_and_from_a_file(rt, runs, tmp_path):
    examples = Path(__file__).parents[2] / "examples"
    export_policy(load_policy(runs("vectors")), tmp_path / "policy.onnx", "onnx")
    outputs = [
        subprocess.run([sys.executable, examples / name, *arguments], capture_output=True, text=True, check=True).stdout
        for name, *arguments in (
            ("control_loop.py", runs("vectors"), "0.2"),
            ("act_onnx.py", tmp_path / "policy.onnx", "1"),
        )
    ]
    assert outputs[0].startswith("10 steps at 50 Hz: median")
    assert outputs[1].startswith("CartPole-v1, version 2, 50.0 Hz\nepisode 0: return ")
