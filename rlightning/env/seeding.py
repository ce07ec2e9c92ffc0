"""Seeds of all sub-envs of a run, from one number."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np

Purpose = Literal["train", "eval"]
_PURPOSES: dict[str, int] = {"train": 0, "eval": 1}


def sub_env_seeds(seed: int, purpose: Purpose, worker: int, generation: int, num_envs: int) -> list[int]:
    """Draw the seeds of the sub-envs of one worker.

    They are leaves of numpy's tree of seed sequences over (seed, purpose, worker, generation, sub-env), so that no two
    sub-envs of a run share a stream, whatever the number of workers.

    Args:
        seed: The run's seed, 0 or more.
        purpose: Training or evaluation, which never share seeds.
        worker: Index of the worker.
        generation: Episodes of two generations differ; a worker that replaces another one gets the next generation.
        num_envs: N.

    Returns:
        N whole numbers of 31 bits, valid for simulators with signed 32-bit seeds.

    >>> sub_env_seeds(7, "train", 0, 0, 2) == sub_env_seeds(7, "train", 0, 0, 3)[:2]
    True
    """
    root = np.random.SeedSequence(seed, spawn_key=(_PURPOSES[purpose], worker, generation))
    return [int(child.generate_state(1)[0]) >> 1 for child in root.spawn(num_envs)]


def joint_seed(seeds: Sequence[int]) -> int:
    """Mix the seeds of all sub-envs into one number, for native vector envs."""
    return int(np.random.SeedSequence(list(seeds)).generate_state(1)[0]) >> 1


_SPACES = ("action_space", "observation_space", "single_action_space", "single_observation_space")


def seed_spaces(env: Any, seed: int) -> None:
    """Seed the spaces of an env of Gymnasium, since ``reset`` does not.

    An env whose spaces are attributes of its class, and so of all envs of this process, gets copies of its own.
    """
    for owner in {id(each): each for each in (env, env.unwrapped)}.values():
        for name in _SPACES:
            space = vars(owner).get(name)
            if name not in vars(owner) and isinstance(shared := getattr(type(owner), name, None), gym.Space):
                space = copy.deepcopy(shared)
                setattr(owner, name, space)
            if isinstance(space, gym.Space):
                space.seed(seed)
