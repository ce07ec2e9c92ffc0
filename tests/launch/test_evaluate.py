"""A run is evaluated in one process, however many workers it had."""

import io

import pytest
from rich.console import Console

from rlightning.launch.evaluate import EvalRequest, evaluate_run
from rlightning.launch.load import load_config
from rlightning.launch.run import train

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
