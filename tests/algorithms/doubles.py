"""Small pieces for tests of algorithms: a policy for two spaces, and rollouts without an env."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from tensordict import TensorDict
from torch import Tensor

from rlightning.algorithms.ppo import PPO
from rlightning.config import OptimConfig, PolicyConfig, TrainConfig
from rlightning.policy.base_policy import PolicyRole
from rlightning.types import EnvMeta, EnvRet, PolicyResponse

Reward = Callable[[Tensor], Tensor]


def make_ppo(
    observation: gym.Space[Any],
    action: gym.Space[Any],
    role: PolicyRole = PolicyRole.TRAIN,
    *,
    model: dict[str, Any] | None = None,
    algo: dict[str, Any] | None = None,
    optim: dict[str, Any] | None = None,
    compiled: bool = False,
    **train: Any,
) -> PPO:
    """Build a PPO that is ready to learn, or to take weights."""
    optim_cfg = OptimConfig(**(optim or {}))
    config = PolicyConfig(model_cfg=model or {}, algo_cfg=algo or {}, optim_cfg=optim_cfg, compile=compiled)
    policy = PPO(config, role)
    policy.set_seed(0)
    meta = EnvMeta("Test-v0", observation, action, num_envs=4)
    if role is PolicyRole.TRAIN:
        policy.init_train(TrainConfig(**train), meta)
    else:
        policy.init_eval(None, meta)
    return policy


def observations(space: gym.Space[Any], rows: int, generator: torch.Generator) -> Any:
    """Draw observations of a Box or of a Dict of Boxes, [rows, ...]."""
    if isinstance(space, gym.spaces.Dict):
        return {key: observations(part, rows, generator) for key, part in space.spaces.items()}
    assert space.shape is not None
    if space.dtype == "uint8":
        return torch.randint(0, 256, (rows, *space.shape), generator=generator, dtype=torch.uint8)
    return torch.randn(rows, *space.shape, generator=generator)


def act(policy: PPO, observation: Any, *, deterministic: bool = False) -> PolicyResponse:
    """Let a policy answer rows of observations, as the framework does."""
    rows = next(iter(observation.values())) if isinstance(observation, dict) else observation
    zeros = torch.zeros(len(rows))
    with torch.inference_mode():
        return policy.rollout_step(
            EnvRet(observation, zeros, zeros.bool(), zeros.bool(), zeros.bool()), deterministic=deterministic
        )


def rollout(
    policy: PPO, steps: int, envs: int, *, seed: int = 0, reward: Reward | None = None, **columns: Tensor
) -> TensorDict:
    """Act on random observations.

    Args:
        policy: Who acts, with its own generator.
        steps: T.
        envs: N.
        seed: Of the observations and random rewards.
        reward: From env actions [N, ...] to rewards [N]; None means random ones.
        **columns: Replace whole columns, [T, N].

    Returns:
        Data as the buffer hands them out, [T, N]; nothing ends unless a column says so.
    """
    assert policy.env_meta is not None
    rng = torch.Generator().manual_seed(seed)
    space = policy.env_meta.observation_space
    seen = [TensorDict({"x": observations(space, envs, rng)}, [envs]) for _ in range(steps + 1)]
    answers = [act(policy, _as_tree(row["x"])) for row in seen[:-1]]
    no = torch.zeros(steps, envs, dtype=torch.bool)
    rewards = [torch.randn(envs, generator=rng) if reward is None else reward(a.action_for_env) for a in answers]
    return TensorDict(
        {
            "observation": torch.stack(seen[:-1])["x"],
            "next_observation": torch.stack(seen[1:])["x"],
            "action": torch.stack([answer.action.clone() for answer in answers]),
            "log_prob": torch.stack([answer.extras["log_prob"].clone() for answer in answers]),
            "reward": torch.stack(rewards).clone(),
            "terminated": no.clone(),
            "truncated": no.clone(),
            "valid": ~no,
            **columns,
        },
        [steps, envs],
    )


def _as_tree(value: Any) -> Any:
    return {key: _as_tree(part) for key, part in value.items()} if isinstance(value, TensorDict) else value
