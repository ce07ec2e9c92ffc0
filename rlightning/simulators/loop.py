"""A loop over plain Gymnasium envs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np

from rlightning.env.arrays import Leaf, empty_rows, space_leaves, write_row
from rlightning.env.seeding import seed_spaces
from rlightning.errors import ConfigError, Problem, ShapeError, WorkerError
from rlightning.simulators.episode_info import EpisodeInfo
from rlightning.types import EnvRet, Tree
from rlightning.types.tree import tree_map


class EnvLoop:
    """Steps N plain envs in turn; an env whose episode ends is reset in the same step.

    Faster than Gymnasium's ``SyncVectorEnv``, which collects every entry of every ``info``.

    Attributes:
        envs: The envs, with equal spaces.
        observation_space, action_space: Spaces of one env.
        num_envs: N.

    Args:
        envs: The envs.
        info: Selection of the numbers in ``info`` at the end of an episode.

    Raises:
        ConfigError: If the envs differ in their spaces.
    """

    resets_with_next_step = False

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], info: EpisodeInfo | None = None) -> None:
        self.envs: list[Any] = list(envs)
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.env.observation_space, self.env.action_space
        for i, env in enumerate(self.envs):
            if env.observation_space != self.observation_space or env.action_space != self.action_space:
                raise ConfigError(Problem("env.name", f"sub-env {i} has other spaces than sub-env 0: {env}"))
        self._leaves = space_leaves(self.observation_space)
        self._rows = empty_rows(self._leaves, self.num_envs)
        self._action_leaves = space_leaves(self.action_space)
        self._is_discrete = isinstance(self.action_space, gym.spaces.Discrete)
        self._never = np.zeros(self.num_envs, np.bool_)
        self._info = info or EpisodeInfo(num_envs=self.num_envs)

    @property
    def env(self) -> Any:
        """The first env."""
        # No attribute: it would be missing after a state of version 0.1.0 is restored.
        return self.envs[0]

    def reset(self, seeds: Sequence[int] | None, options: dict[str, Any] | None) -> EnvRet:
        """Start a new episode in every env."""
        for i, env in enumerate(self.envs):
            try:
                if seeds is not None:
                    seed_spaces(env, seeds[i])
                observation, _ = env.reset(seed=None if seeds is None else seeds[i], options=deepcopy(options))
                write_row(self._rows, i, observation, self._leaves)
            except ShapeError:  # its message names the sub-env
                raise
            except (Exception, SystemExit) as error:
                raise _sub_env_error(error, i) from error
        return EnvRet.from_reset(self._rows, self.num_envs)

    def step(self, action: Tree) -> EnvRet:
        """Step every env.

        Args:
            action: [N, ...] of the action space's dtype.

        Returns:
            The result. The next call overwrites its observation.
        """
        n, rows, leaves, final = self.num_envs, self._rows, self._leaves, None
        infos: dict[int, Any] = {}
        reward, terminated, truncated = np.empty(n, np.float64), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        i = 0
        try:
            for i, (env, row) in enumerate(zip(self.envs, self._split(action), strict=True)):
                observation, reward[i], is_terminal, is_cut, info = env.step(row)
                if is_terminal is False and is_cut is False:
                    write_row(rows, i, observation, leaves)
                    continue
                terminated[i], truncated[i] = _flag(is_terminal, "terminated"), _flag(is_cut, "truncated")
                if terminated[i] or truncated[i]:
                    if final is None:
                        final = tree_map(np.copy, rows)
                    write_row(final, i, observation, leaves)
                    infos[i] = info
                    observation, _ = env.reset()
                write_row(rows, i, observation, leaves)
            last_info = self._info.pick(infos) if infos else {}
        except ShapeError:  # its message names the sub-env
            raise
        except (Exception, SystemExit) as error:
            raise _sub_env_error(error, i) from error
        return EnvRet(rows, reward, terminated, truncated, self._never, final, last_info)

    def render(self) -> Any:
        """Render the first env."""
        return self.env.render()

    def close(self) -> None:
        """Close every env, also after a failure; then raise the first failure."""
        failures: list[WorkerError] = []
        for i, env in enumerate(self.envs):
            try:
                env.close()
            except (Exception, SystemExit) as error:
                failures.append(_sub_env_error(error, i))
                failures[-1].__cause__ = error
        if failures:
            raise failures[0]

    def _split(self, action: Tree) -> Sequence[Any]:
        if self._is_discrete:
            return action.tolist()  # type: ignore[no-any-return]
        # An env may store its row, or write into it, so rows must not share memory.
        if isinstance(self._action_leaves, Leaf):
            return [row.copy() for row in action]
        return [tree_map(lambda leaf, i=i: leaf[i].copy(), action) for i in range(self.num_envs)]


def _flag(value: Any, name: str) -> bool:
    """Convert a flag to bool; refuse a value such as None, or the dict of an older interface."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise TypeError(f"{name} is {value!r}, which is neither true nor false")
    return bool(array.item())


def _sub_env_error(error: Exception | SystemExit, row: int) -> WorkerError:
    return WorkerError(f"sub-env {row}: {type(error).__name__}: {error}")
