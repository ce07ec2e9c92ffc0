"""Record what stable-baselines3's PPO learns from a rollout, as an oracle of the tests for ours.

Run it in the environment of the benchmarks' peers:

    python benchmarks/sb3_update.py tests/algorithms/sb3
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

NUM_ENVS, STEPS, TIME_LIMIT = 4, 40, 16
SETTINGS: dict[str, Any] = {
    "learning_rate": 3e-3,
    "n_steps": STEPS,
    "batch_size": NUM_ENVS * STEPS,  # one minibatch, so that the order of the rows does not matter
    "n_epochs": 10,
    "gamma": 0.97,
    "gae_lambda": 0.9,
    "clip_range": 0.05,
    "ent_coef": 0.01,
    "vf_coef": 0.7,
    "max_grad_norm": 0.5,
    "policy_kwargs": {"net_arch": [16, 16]},
}


class Recorder(BaseCallback):
    """Keeps what the envs gave, before stable-baselines3 adds the values of what came after a truncation."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: dict[str, list[Any]] = {}

    def _on_step(self) -> bool:
        seen, following = self.locals["self"]._last_obs, self.locals["new_obs"].copy()
        truncated = np.zeros(NUM_ENVS, np.bool_)
        for i, (done, info) in enumerate(zip(self.locals["dones"], self.locals["infos"], strict=True)):
            if done:
                following[i] = info["terminal_observation"]
                truncated[i] = info["TimeLimit.truncated"]
        step = {
            "observation": seen,
            "next_observation": following,
            "action": self.locals["actions"],
            "log_prob": self.locals["log_probs"].numpy(),
            "reward": self.locals["rewards"].astype(np.float32),
            "terminated": self.locals["dones"] & ~truncated,
            "truncated": truncated,
        }
        for name, value in step.items():
            self.columns.setdefault(name, []).append(np.array(value))
        return True


def record(env_id: str, path: Path) -> None:
    """Collect one rollout with untrained networks, learn from it, and write all into a file."""
    torch.manual_seed(0)
    envs = make_vec_env(env_id, NUM_ENVS, seed=0, env_kwargs={"max_episode_steps": TIME_LIMIT})
    model = PPO("MlpPolicy", envs, seed=0, device="cpu", **SETTINGS)
    before = {name: tensor.numpy().copy() for name, tensor in model.policy.state_dict().items()}
    recorder = Recorder()
    model.learn(NUM_ENVS * STEPS, callback=recorder)
    after = {name: tensor.numpy() for name, tensor in model.policy.state_dict().items()}
    rollout = {name: np.stack(values) for name, values in recorder.columns.items()}
    advantage = model.rollout_buffer.advantages
    if advantage.shape != (STEPS, NUM_ENVS):  # training has flattened it, env by env
        advantage = advantage.reshape(NUM_ENVS, STEPS).T
    arrays = {"advantage/": advantage}
    arrays |= {f"rollout/{name}": value for name, value in rollout.items()}
    arrays |= {f"before/{name}": value for name, value in before.items()}
    arrays |= {f"after/{name}": value for name, value in after.items()}
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    record("MountainCarContinuous-v0", folder / "continuous.npz")
    record("CartPole-v1", folder / "discrete.npz")
