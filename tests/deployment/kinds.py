"""One small run of each kind of policy. What people do with a policy is tested with all of them: a new one is a row."""

from pathlib import Path

import gymnasium as gym
import numpy as np
from rich.console import Console

from rlightning.commands.run import train
from rlightning.configuring.load import load_config

EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = (
    "train.max_epochs=2",
    "train.max_rollout_steps=16",
    "train.batch_size=16",
    "evaluation.episodes=2",
    "env.num_envs=2",
)


class ArmWithCamera(gym.Env):
    """A dict of an image, a vector and a choice; several choices as actions."""

    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (16, 16, 1), np.uint8),
            "joints": gym.spaces.Box(-np.inf, np.inf, (2,), np.float64),
            "mode": gym.spaces.Discrete(3, start=1),
        }
    )
    action_space = gym.spaces.MultiDiscrete([3, 2], start=[1, 0])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), float(action[0]), self.steps == 5, False, {}


KINDS = {
    "vectors": ("ppo_cartpole",),
    "pixels": ("ppo_pixels",),
    "squashed": ("ppo_pendulum", "policy.model_cfg.box_actions=squash"),
    "mujoco": ("ppo_hopper", "env.name=InvertedPendulum-v5"),
    "dict": ("ppo_cartpole", "env.name='tests.deployment.kinds:ArmWithCamera'"),
    "own model": (
        "ppo_pendulum",
        f"imports=['{EXAMPLES}/own_model.py']",
        "policy.model_cfg.encoder=residual",
        "policy.model_cfg.encoder_cfg.width=16",
    ),
    "recurrent": (
        "ppo_cartpole",
        "imports=[tests.engine.policies,tests.engine.envs]",
        "policy={type: recurrent, model_cfg: {}, algo_cfg: {}}",
        "env.backend=step_count",
        "env.env_kwargs={lengths: [3, 7]}",
    ),
}
"""Preset and overrides of each."""


def train_kind(kind, folder, *overrides):
    """Train a kind of policy for two epochs; return the folder of the run."""
    preset, *own = KINDS[kind]
    return train_preset(preset, *own, *SHORT, *overrides, folder=folder)


def train_preset(preset, *overrides, folder):
    """Train a preset, without a word; return the folder of the run."""
    return train(load_config(preset, [*overrides, f"train.save_dir={folder}"]), Console(quiet=True)).path
