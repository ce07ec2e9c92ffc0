"""One whole update is that of stable-baselines3's PPO: episodes that end either way, returns, losses, clipping, Adam.

The rollouts and the parameters before and after were recorded by ``benchmarks/sb3_update.py``.
"""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.algorithms.doubles import make_ppo

SPACES = {
    "continuous": (gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Box(-1.0, 1.0, (1,))),
    "discrete": (gym.spaces.Box(-np.inf, np.inf, (4,)), gym.spaces.Discrete(2)),
}
NAMES = {
    "mlp_extractor.policy_net": "actor",
    "mlp_extractor.value_net": "critic",
    "value_net": "value_head",
    "log_std": "head.log_std",
}
"""Where a parameter of stable-baselines3 lies here; ``action_net`` depends on the actions."""


def recorded(kind: str) -> dict[str, dict[str, torch.Tensor]]:
    groups: dict[str, dict[str, torch.Tensor]] = {"rollout": {}, "before": {}, "after": {}}
    with np.load(Path(__file__).parent / "sb3" / f"{kind}.npz") as arrays:
        for path in arrays.files:
            group, _, name = path.partition("/")
            groups.setdefault(group, {})[name] = torch.from_numpy(arrays[path])
    return groups


def renamed(parameters: dict[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    names = {**NAMES, "action_net": "head.mean" if kind == "continuous" else "head.logits"}
    ours = {}
    for name, value in parameters.items():
        [theirs] = [prefix for prefix in names if name == prefix or name.startswith(f"{prefix}.")]
        ours[names[theirs] + name.removeprefix(theirs)] = value
    return ours


@pytest.mark.parametrize("kind", SPACES)
def test_an_update_is_that_of_stable_baselines3(kind: str) -> None:
    recording = recorded(kind)
    rollout = recording["rollout"]
    assert rollout["truncated"].any()
    assert rollout["terminated"].any() or kind == "continuous"
    algo = {"gamma": 0.97, "lam": 0.9, "clip_range": 0.05, "entropy_coef": 0.01, "value_coef": 0.7, "update_epochs": 10}
    policy = make_ppo(
        *SPACES[kind],
        model={"hidden_sizes": [16, 16], "normalize_observation": False},
        algo=algo,
        optim={"max_grad_norm": 0.5},
        lr=3e-3,
        batch_size=rollout["reward"].numel(),
    )
    before, after = renamed(recording["before"], kind), renamed(recording["after"], kind)
    policy.network.load_state_dict(before, strict=False)
    assert before.keys() == dict(policy.network.named_parameters()).keys()

    valid = torch.ones_like(rollout["truncated"])
    policy.update_dataset(TensorDict({**rollout, "valid": valid}, batch_size=valid.shape))
    assert policy.dataset is not None
    advantage = policy.dataset.rows.advantage.view(valid.shape)
    torch.testing.assert_close(advantage, recording["advantage"][""], atol=1e-5, rtol=1e-5)
    metrics = policy.train()

    assert metrics["train/clip_fraction"] > 0.01
    for name, parameter in policy.network.named_parameters():
        assert (after[name] - before[name]).abs().max() > 5e-4, f"{name} has hardly moved"
        torch.testing.assert_close(parameter.detach(), after[name], atol=1e-6, rtol=0.0)
