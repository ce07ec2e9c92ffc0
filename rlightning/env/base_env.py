"""The base class of simulators and robots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlightning.config import EnvConfig
from rlightning.env import state as env_state
from rlightning.env.seeding import Purpose
from rlightning.errors import Problem
from rlightning.types import EnvMeta, EnvRet, PolicyResponse


class BaseEnv(ABC):
    """N sub-envs that are reset and stepped together, batch first.

    A subclass sets ``meta`` in its constructor and implements ``reset`` and ``step``. A sub-env whose episode ended
    starts the next one by itself, in one of two ways: at once (its row of ``observation`` is the first of the next
    episode), or with the next step, whose action it ignores (that row then has ``is_reset``, reward 0). Either way
    ``final_observation`` has the true last observation of the rows that ended.

    The worker copies results and actions: an env may reuse its arrays and write into the action.

    Attributes:
        config: The env's section of the configuration.
        meta: Name, spaces and N.
        purpose: Training or evaluation; the worker sets it before the first reset. An env may evaluate at full
            difficulty.
        logged_info: Names in ``EnvRet.info`` of numbers [N] whose means over the steps of an epoch are logged as
            ``env/<name>``, such as the terms of the reward.
        resets_with_next_step: Whether a sub-env whose episode ended starts the next one with the next step, so that its
            row has the last observation until then.
        render_fps: Steps per second of the env's own time, so that videos last as long as the episode; None if
            unknown.
    """

    meta: EnvMeta
    purpose: Purpose = "train"
    logged_info: Sequence[str] = ()
    resets_with_next_step: bool = False
    render_fps: float | None = None

    def __init__(self, config: EnvConfig) -> None:
        self.config = config

    @classmethod
    def check(cls, config: EnvConfig) -> Sequence[Problem]:
        """Return the problems of a configuration that are known before an env is built.

        A run with a problem is refused before it starts. Paths begin with ``env``, such as
        ``env.env_kwargs.speed``.
        """
        return ()

    @abstractmethod
    def reset(self, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None) -> EnvRet:
        """Start a new episode in every row.

        Args:
            seed: One seed per row; None continues with the random generators of the env.
            options: Options of the simulator.

        Returns:
            ``EnvRet.from_reset(observation, num_envs)``.
        """

    @abstractmethod
    def step(self, response: PolicyResponse) -> EnvRet:
        """Make one step in every row.

        Args:
            response: Its ``action_for_env`` is an array [N, ...] of the action space's dtype (a dict or tuple of them
                in such spaces) that belongs to the env.
        """

    def close(self) -> None:
        """Release the resources of the env; may be called twice."""
        return

    def render(self) -> np.ndarray[Any, Any] | None:
        """Draw the first row: [H, W, 3] uint8, or None if it cannot be drawn."""
        return None

    def get_state(self) -> dict[str, Any] | None:
        """Describe the env so exactly that it continues bit for bit the same after ``set_state``.

        The attributes of the env and of its objects are stored if they are plain data: numbers, strings, arrays, random
        generators, lists, dicts and the like. Override it for an env whose state lies elsewhere.

        Returns:
            Nested dicts and lists of arrays, numbers and strings; None if a part cannot be stored.
        """
        return env_state.capture(self)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of ``get_state``; called after a ``reset``.

        Raises:
            CheckpointError: If the state is that of another env.
        """
        env_state.restore(state, self)
