"""Results and responses with numbers that are easy to follow."""

from __future__ import annotations

import numpy as np

from rlightning.types import EnvRet, PolicyResponse


def ret(observation, *, reward=0.0, terminated=False, truncated=False, is_reset=False, final=None):
    """Result of a step: one number per sub-env is its observation; flags and rewards are spread over the sub-envs."""
    observation = column(observation)
    rows = len(observation)

    def spread(value, dtype):
        return np.broadcast_to(np.asarray(value, dtype), (rows,)).copy()

    return EnvRet(
        observation,
        spread(reward, np.float32),
        spread(terminated, np.bool_),
        spread(truncated, np.bool_),
        spread(is_reset, np.bool_),
        None if final is None else column(final),
    )


def answer(action, *, version=0, **extras):
    """Response with one action per sub-env."""
    arrays = {name: np.asarray(value, np.float32) for name, value in extras.items()}
    return PolicyResponse(np.asarray(action, np.int64), extras=arrays, version=version)


def column(numbers):
    """Observations [N, 1]."""
    return np.asarray(numbers, np.float32).reshape(-1, 1)


def build_anew(shard, *args):
    """Have a shard begin again, as its constructor leaves it."""
    shard.__init__(*args)
