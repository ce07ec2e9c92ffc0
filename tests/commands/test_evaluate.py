"""A run is evaluated in one process, however many workers it had."""

import io
from types import SimpleNamespace

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import pytest
from rich.console import Console

from rlightning.commands.evaluate import EvalRequest, evaluate_run, record_episode
from rlightning.commands.run import train
from rlightning.config import EnvConfig, EvalConfig
from rlightning.configuring.load import load_config
from rlightning.runtime import LocalFuture
from rlightning.types import BatchedData, PolicyResponse

MANY = ["cluster.train_worker_num=2", "cluster.buffer_worker_num=2", "cluster.eval_worker_num=2", "env.num_workers=2"]
SHORT = ["train.max_epochs=1", "train.save_dir=runs", "log.progress=false", "log.backend=[]", "evaluation.episodes=2"]


@pytest.mark.parametrize("env_strategy", ["default", "process-colocate"])
def test_a_run_of_several_learners_shards_and_actors_is_evaluated(tmp_path, monkeypatch, env_strategy):
    monkeypatch.chdir(tmp_path)
    overrides = [*MANY, *SHORT, f"cluster.placement.env_strategy={env_strategy}"]
    console = Console(file=io.StringIO(), width=100)
    run = train(load_config("ppo_cartpole", overrides), console)
    evaluate_run(EvalRequest(run.path, "last", episodes=3), console)
    assert "episodes    3" in console.file.getvalue()


class _Stand:
    """Always takes action 0, like an engine with a policy that has learned nothing."""

    policy_group = property(lambda self: self)

    def rollout_batch(self, env_rets, **kwargs):
        return BatchedData([0], [LocalFuture(PolicyResponse(np.zeros(1, np.int64)))])


# 100 steps: at 20 a second they are 5 s; at 500 a second, 0.2 s, of which every tenth step is shown; at 30 a second
# 3.33 s, which is 83.3 pictures of 0.04 s, since a GIF has no hundredth of a second and a third.
@pytest.mark.parametrize(("fps", "frames", "frame_s"), [(20, 100, 0.05), (500, 10, 0.02), (30, 83, 0.04)])
def test_a_video_lasts_as_long_as_its_episode(tmp_path, fps, frames, frame_s):
    config = SimpleNamespace(
        env=[EnvConfig(name=f"{__name__}:Blinking", env_kwargs={"fps": fps})], evaluation=EvalConfig()
    )
    assert record_episode(_Stand(), config, tmp_path / "blinking.gif").length == 100
    with imageio.get_reader(tmp_path / "blinking.gif") as reader:
        shown = [frame.meta["duration"] for frame in reader.iter_data()]
    assert shown == [pytest.approx(1000 * frame_s)] * frames


class Blinking(gym.Env):
    """Shows another picture in each of its 100 steps."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fps, render_mode):
        self.render_mode, self.metadata = render_mode, {"render_modes": ["rgb_array"], "render_fps": fps}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 0.0, False, self.t == 100, {}

    def render(self):
        return np.full((16, 16, 3), self.t, np.uint8)


def test_two_policies_play_the_same_episodes_and_both_kinds_of_actions_are_compared(tmp_path):
    one = train(load_config("ppo_cartpole", [*SHORT, f"train.save_dir={tmp_path}"]), Console(quiet=True)).path
    console = Console(file=io.StringIO(), width=200)
    evaluate_run(EvalRequest(one, episodes=6, both=True, against=one), console)
    lines = console.file.getvalue().splitlines()
    found = next(line for line in lines if line.startswith("difference"))
    # The same policy on the same starts has the same returns.
    assert found == "difference  0.00, within 0.00 to 0.00 (95 %): no difference is shown; 6 pairs of equal starts"
    assert any(line.startswith("most likely ") and ", sampled " in line for line in lines)
    assert sum("(95 %)" in line for line in lines) >= 3
