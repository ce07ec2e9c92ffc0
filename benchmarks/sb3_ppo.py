"""The same PPO run by stable-baselines3, in its own environment (see peers.sh).

benchmarks/.venvs/sb3/bin/python benchmarks/sb3_ppo.py --env-id HalfCheetah-v5 --normalise 1
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from report import IterationClock, print_run
from settings import Settings
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize


class Ticker(BaseCallback):
    """Closes an iteration where the next rollout begins, that is, after the update."""

    def __init__(self, clock: IterationClock, transitions: int) -> None:
        super().__init__()
        self._clock, self._transitions, self._rollouts = clock, transitions, 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self._rollouts:
            self._tick()
        self._rollouts += 1

    def _on_training_end(self) -> None:
        self._tick()

    def _tick(self) -> None:
        episodes = self.model.ep_info_buffer or ()
        self._clock.tick(self._transitions, returns=[episode["r"] for episode in episodes])


def build(settings: Settings, **further: Any) -> PPO:
    """Build the algorithm with the settings of the benchmark; its networks are 64x64 tanh by default."""
    envs: VecEnv = make_vec_env(settings.env_id, settings.num_envs, seed=settings.seed)
    if settings.normalise:
        envs = VecNormalize(envs, gamma=settings.gamma)
    return PPO(
        "MlpPolicy",
        envs,
        learning_rate=settings.learning_rate,
        n_steps=settings.rollout_steps,
        batch_size=settings.batch_size,
        n_epochs=settings.epochs,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip,
        vf_coef=settings.value_coef,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        device="cpu",
        **further,
    )


def main() -> None:
    settings = Settings.from_command_line(__doc__)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    model = build(settings)
    transitions = settings.num_envs * settings.rollout_steps
    clock = IterationClock()
    model.learn(settings.iterations * transitions, callback=Ticker(clock, transitions))
    returns = [episode["r"] for episode in model.ep_info_buffer or ()]
    mean_return = round(float(np.mean(returns)), 2) if returns else None
    packages = ["stable-baselines3", "torch", "numpy", "gymnasium"]
    print_run("sb3", settings, clock, packages, mean_return=mean_return)


if __name__ == "__main__":
    main()
