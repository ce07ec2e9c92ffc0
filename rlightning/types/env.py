"""The data of env workers: the description of an env, and the result of a reset or a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rlightning.types.tree import Tree


@dataclass(frozen=True, slots=True)
class EnvMeta:
    """The description of envs that policies are built for.

    Attributes:
        name: The env's name, such as ``HalfCheetah-v5``.
        observation_space: Of one sub-env, without a batch axis.
        action_space: Of one sub-env, without a batch axis.
        num_envs: N, the sub-envs of one worker; on the meta of a group, of all its workers together.
        max_episode_steps: Steps after which an episode is truncated; None where there is no limit.
        rate_hz: Steps per second of the env's own time; None if unknown.
        action_names: Names of the dimensions of the action, such as those of actuators; empty if they have none.
    """

    name: str
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    num_envs: int
    max_episode_steps: int | None = None
    rate_hz: float | None = None
    action_names: tuple[str, ...] = ()


@dataclass(slots=True)
class EnvRet:
    """The result of a reset or of one step of the N sub-envs of one worker, batch first.

    On the env's side the leaves are numpy arrays; a policy's ``rollout_step`` gets tensors on its device.

    Attributes:
        observation: Observation for the next action, [N, ...].
        reward: Reward of the step that led here, [N] float32; 0 after a reset.
        terminated: The step that led here ended the episode in a terminal state, [N] bool.
        truncated: The step that led here was cut off by a time limit or the like, [N] bool.
        is_reset: The observation comes from a reset and not from acting: no transition led here, [N] bool. True
            everywhere after ``reset``, and in the row in which an env with next-step autoreset resets.
        final_observation: The true last observation where terminated or truncated, [N, ...]; other rows have no
            meaning. None if no row ended.
        info: Further arrays by name, [N, ...]. Envs of Gymnasium return the logged numbers where an episode ended, with
            NaN in the other rows.
        is_first: The observation is the first of an episode, [N] bool, whatever the autoreset of the env; on the env's
            side None if no row is. Also the first request of an env worker to a policy with ``is_stateful``.
        env_id: Id of the env worker of each row, [N] int64; only in requests to ``rollout_step``.
        row: Index of the sub-env of each row among those of its worker, [N] int64; likewise.
        evaluation: Whether the request belongs to an evaluation, whose envs have ids of their own; likewise.
    """

    observation: Tree
    reward: Any
    terminated: Any
    truncated: Any
    is_reset: Any
    final_observation: Tree | None = None
    info: dict[str, Any] = field(default_factory=dict)
    is_first: Any = None
    env_id: Any = None
    row: Any = None
    evaluation: bool = False

    @property
    def num_envs(self) -> int:
        """N, the number of rows."""
        return len(self.reward)

    @property
    def ended(self) -> Any:
        """Whether the step that led here ended an episode, [N] bool."""
        return self.terminated | self.truncated

    @classmethod
    def from_reset(cls, observation: Tree, num_envs: int) -> EnvRet:
        """Build the result of a reset of all ``num_envs`` rows."""
        return cls(
            observation=observation,
            reward=np.zeros(num_envs, np.float32),
            terminated=np.zeros(num_envs, np.bool_),
            truncated=np.zeros(num_envs, np.bool_),
            is_reset=np.ones(num_envs, np.bool_),
            is_first=np.ones(num_envs, np.bool_),
        )
