"""A whole run is that of PPO written by hand in one file, epoch by epoch, when both draw the same random numbers.

The env has no contacts, so that differences of rounding stay small: MountainCarContinuous, cut by its time limit of 999
steps in the eighth epoch. Observations are normalised and rewards scaled.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rlightning.algorithms.ppo import PPO
from rlightning.assembly.assemble import assemble
from rlightning.configuring.load import load_config
from rlightning.env import env_worker
from rlightning.functional.distributions import DiagonalGaussian

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EPOCHS, SEED = 10, 1
NAMES = {"actor.4": "head.mean", "critic.4": "value_head", "log_std": "head.log_std"}
"""Where a parameter of the loop lies in the package, if it has another name there."""


def renamed(parameters):
    return {
        next((name.replace(theirs, ours) for theirs, ours in NAMES.items() if name.startswith(theirs)), name): value
        for name, value in parameters
    }


@pytest.mark.slow
def test_a_run_learns_what_the_loop_written_by_hand_learns(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from handwritten_ppo import Trainer
    from rlightning_ppo import overrides
    from settings import Settings

    settings = Settings(env_id="MountainCarContinuous-v0", seed=SEED, normalise=1, backend="gymnasium")
    loop = Trainer(settings)
    first = {name: value.clone() for name, value in renamed(loop.network.named_parameters()).items()}
    torch.manual_seed(SEED)
    learned = []
    for _ in range(EPOCHS):
        loop.collect()
        loop.learn()
        learned.append({name: value.clone() for name, value in renamed(loop.network.named_parameters()).items()})
    assert loop.returns, "no episode was cut"

    # The same draws, in the order of the loop: noise at each step, then the orders of the rows.
    monkeypatch.setattr(PPO, "shared_generator", None)
    monkeypatch.setattr(DiagonalGaussian, "_noise", lambda self, generator: torch.randn_like(self.mean))
    monkeypatch.setattr(env_worker, "sub_env_seeds", lambda *_: [SEED + i for i in range(settings.num_envs)])
    there = [f"train.save_dir={tmp_path}", f"env.name={settings.env_id}"]
    config = load_config("ppo_halfcheetah", [*overrides(settings), *there]).config
    with assemble(config) as engine:
        engine.start()
        learner = engine.policy_group.train_list[0]
        learner.network.load_state_dict(first, strict=False)
        engine.policy_group.sync_weights()
        torch.manual_seed(SEED)
        for epoch in range(EPOCHS):
            engine.run_epoch()
            for name, parameter in learner.network.named_parameters():
                torch.testing.assert_close(parameter, learned[epoch][name], atol=2e-6, rtol=0.0, msg=f"{epoch}: {name}")
        statistics = learner.network.normalizer
        np.testing.assert_allclose(statistics.mean, loop.observation_moments.mean, rtol=1e-5)
        np.testing.assert_allclose(learner.reward_scaler.var, loop.return_moments.variance, rtol=1e-4)
    assert max((learned[-1][name] - first[name]).abs().max().item() for name in first) > 0.05
