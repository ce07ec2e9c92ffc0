"""The same PPO run by RLlib (its new API stack), in its own environment (see peers.sh); the learner is in this process.

benchmarks/.venvs/rllib/bin/python benchmarks/rllib_ppo.py --env-id HalfCheetah-v5 --workers 2
"""

from __future__ import annotations

import logging
import os

import gymnasium  # noqa: F401 (registers the envs)
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from report import IterationClock, print_run
from settings import Settings


def build(settings: Settings) -> PPOConfig:
    """Translate the settings; each env runner acts with its own copy of the policy."""
    return (
        PPOConfig()
        .environment(settings.env_id)
        .env_runners(
            num_env_runners=settings.workers,
            num_envs_per_env_runner=settings.num_envs // settings.workers,
            rollout_fragment_length=settings.rollout_steps,
            num_cpus_per_env_runner=1,
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=settings.num_envs * settings.rollout_steps,
            minibatch_size=settings.batch_size,
            num_epochs=settings.epochs,
            lr=settings.learning_rate,
            gamma=settings.gamma,
            lambda_=settings.gae_lambda,
            clip_param=settings.clip,
            vf_loss_coeff=settings.value_coef,
            vf_clip_param=float("inf"),
            use_kl_loss=False,
            entropy_coeff=0.0,
            grad_clip=settings.max_grad_norm,
            grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False, head_fcnet_hiddens=[]
            )
        )
        .debugging(seed=settings.seed, log_level="ERROR")
        .reporting(
            min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=0, min_train_timesteps_per_iteration=0
        )
    )


def main() -> None:
    settings = Settings.from_command_line(__doc__)
    if settings.normalise:
        raise SystemExit("this arm has no normalisation: use --normalise 0")
    if settings.threads:
        torch.set_num_threads(settings.threads)
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
    ray.init(num_cpus=settings.workers + 1, include_dashboard=False, logging_level=logging.ERROR)
    algorithm = build(settings).build_algo()
    clock = IterationClock()
    clock.restart()
    mean_return = None
    for _ in range(settings.iterations):
        result = algorithm.train()
        runners = result["env_runners"]
        clock.tick(int(runners["num_env_steps_sampled"]))
        mean_return = runners.get("episode_return_mean", mean_return)
    algorithm.stop()
    ray.shutdown()
    print_run("rllib", settings, clock, ["ray", "torch", "numpy", "gymnasium"], mean_return=mean_return)


if __name__ == "__main__":
    main()
