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
    places of a run share a stream, however many workers there are.

    Args:
        seed: The run's seed, 0 or more.
        purpose: What the envs are for; training and evaluation never share seeds.
        worker: Index of the worker.
        generation: Each one plays other episodes; a worker that replaces another one gets a new one.
        num_envs: N.

    Returns:
        N whole numbers of 31 bits, which also simulators with signed 32-bit seeds take.

    >>> sub_env_seeds(7, "train", 0, 0, 2) == sub_env_seeds(7, "train", 0, 0, 3)[:2]
    True
    """
    root = np.random.SeedSequence(seed, spawn_key=(_PURPOSES[purpose], worker, generation))
    return [int(child.generate_state(1)[0]) >> 1 for child in root.spawn(num_envs)]


def joint_seed(seeds: Sequence[int]) -> int:
    """Mix the seeds of all sub-envs into the one number that most native vector envs take."""
    return int(np.random.SeedSequence(list(seeds)).generate_state(1)[0]) >> 1


_SPACES = ("action_space", "observation_space", "single_action_space", "single_observation_space")


def seed_spaces(env: Any, seed: int) -> None:
    """Let what an env of Gymnasium draws from its own spaces follow from a seed.

    ``reset`` does not seed them, so that they would draw from the entropy of the machine. An env whose spaces belong to
    its class, and so to all envs of this process, gets copies of its own.
    """
    for owner in {id(each): each for each in (env, env.unwrapped)}.values():
        for name in _SPACES:
            space = vars(owner).get(name)
            if name not in vars(owner) and isinstance(shared := getattr(type(owner), name, None), gym.Space):
                space = copy.deepcopy(shared)
                setattr(owner, name, space)
            if isinstance(space, gym.Space):
                space.seed(seed)
