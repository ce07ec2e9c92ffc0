"""Vector envs of Gymnasium, with any autoreset mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rlightning.env.arrays import empty_rows, space_leaves, write_row
from rlightning.env.seeding import joint_seed, seed_spaces
from rlightning.errors import ConfigError, Problem, WorkerError
from rlightning.simulators.episode_info import EpisodeInfo
from rlightning.types import EnvRet, Tree
from rlightning.types.tree import tree_map

_SEED_LISTS = (gym.vector.SyncVectorEnv, gym.vector.AsyncVectorEnv)


class VectorRows:
    """Adapter of a vector env with N sub-envs.

    Next-step autoreset: the step after the end of an episode resets its row. Same-step autoreset: the last observation
    of the episode is in ``info["final_obs"]``. Disabled: this class resets rows whose episode ended, in the same step.

    Attributes:
        env: The vector env.
        observation_space, action_space: Spaces of one sub-env.
        num_envs: N.
        resets_with_next_step: Whether the autoreset mode is next-step.

    Args:
        env: The vector env.
        time_limit: Steps after which this class truncates episodes; None leaves that to the env.
        info: Selection of the numbers in ``info`` at the end of an episode.

    Raises:
        ConfigError: If the env does not declare its autoreset mode, or if there is a time limit and the env resets its
            rows itself.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv[Any, Any, Any],
        time_limit: int | None = None,
        info: EpisodeInfo | None = None,
    ) -> None:
        self._info = info or EpisodeInfo(num_envs=env.num_envs)
        self.env, self.num_envs = env, env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self._leaves = space_leaves(self.observation_space)
        space_leaves(self.action_space)
        self._mode = _autoreset_mode(env)
        self.resets_with_next_step = self._mode is AutoresetMode.NEXT_STEP
        if time_limit is not None and self._mode is not AutoresetMode.DISABLED:
            raise ConfigError(
                Problem(
                    "env.max_episode_steps",
                    f"{env} has no argument max_episode_steps and resets its rows by itself, so that its episodes "
                    f"cannot be cut from outside: add the argument, set vectorization to sync, or leave the option out",
                )
            )
        self._time_limit = time_limit
        self._ages = np.zeros(self.num_envs, np.int64)
        self._never = np.zeros(self.num_envs, np.bool_)
        self._was_end = np.zeros(self.num_envs, np.bool_)

    @property
    def envs(self) -> list[Any]:
        """Its plain envs; empty for a native vector env."""
        # No attribute: it would be missing after a state of version 0.1.0 is restored.
        return list(getattr(self.env.unwrapped, "envs", ()))

    def reset(self, seeds: Sequence[int] | None, options: dict[str, Any] | None) -> EnvRet:
        """Start a new episode in every row. A native vector env gets one seed for all rows."""
        seed: Any = None
        if seeds is not None:
            seed = list(seeds) if isinstance(self.env.unwrapped, _SEED_LISTS) else joint_seed(seeds)
            seed_spaces(self.env, joint_seed(seeds))
            for each, own in zip(self.envs, seeds, strict=False):
                seed_spaces(each, own)
        observation, _ = self.env.reset(seed=seed, options=options)
        self._ages[:] = 0
        self._was_end = self._never.copy()
        return EnvRet.from_reset(observation, self.num_envs)

    def step(self, action: Tree) -> EnvRet:
        """Step every row.

        Args:
            action: [N, ...] of the action space's dtype.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._mode is AutoresetMode.NEXT_STEP:
            return self._next_step(observation, reward, terminated, truncated, info)
        ret = EnvRet(observation, reward, terminated, truncated, self._never)
        if self._mode is AutoresetMode.DISABLED:
            self._reset_ended(ret, info)
        elif np.count_nonzero(ret.ended):
            ret.final_observation = self._final_rows(ret.ended, info)
            ret.info = self._pick_info(ret.ended, info.get("final_info", info))
        return ret

    def render(self) -> Any:
        """Render the first row."""
        frames = self.env.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _pick_info(self, ended: Any, info: dict[str, Any]) -> dict[str, Any]:
        """Select the numbers of rows whose episode ended.

        Args:
            ended: [N] bool.
            info: An array [N] per name; ``_name``, [N] bool, marks the rows that have the name.
        """
        infos = {
            row: {
                name: values[row]
                for name, values in info.items()
                if not name.startswith("_")
                and isinstance(values, np.ndarray)
                and len(values) == self.num_envs
                and info.get(f"_{name}", ended)[row]
            }
            for row in np.flatnonzero(ended).tolist()
        }
        return self._info.pick(infos)

    def _next_step(
        self, observation: Tree, reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]
    ) -> EnvRet:
        is_reset, ended = self._was_end, terminated | truncated
        if np.count_nonzero(is_reset):
            # The result of a row that the env reset belongs to no action.
            terminated, truncated = terminated & ~is_reset, truncated & ~is_reset
            ended = ended & ~is_reset
            reward = np.where(is_reset, 0.0, reward)
        self._was_end = ended
        if not np.count_nonzero(ended):
            return EnvRet(observation, reward, terminated, truncated, is_reset)
        last_info = self._pick_info(ended, info)
        return EnvRet(observation, reward, terminated, truncated, is_reset, observation, last_info)

    def _reset_ended(self, ret: EnvRet, info: dict[str, Any]) -> None:
        self._ages += 1
        if self._time_limit is not None:
            ret.truncated = ret.truncated | (self._ages >= self._time_limit)
        ended = ret.ended
        if not np.count_nonzero(ended):
            return
        ret.info = self._pick_info(ended, info)
        # The env may return the same array in every call.
        ret.final_observation = tree_map(np.copy, ret.observation)
        fresh, _ = self.env.reset(options={"reset_mask": np.array(ended, np.bool_)})
        ret.observation = tree_map(lambda last, first: _where(ended, first, last), ret.final_observation, fresh)
        self._ages[ended] = 0

    def _final_rows(self, ended: Any, info: dict[str, Any]) -> Tree:
        """Return the last observations, [N, ...] per leaf, from such arrays or from an array of one object per row."""
        final = info.get("final_obs", info.get("final_observation"))
        if final is None:
            raise WorkerError(
                f"{self.env} has same-step autoreset and gives no info['final_obs'] although an episode ended: the "
                f"true last observation is needed to bootstrap from"
            )
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            return final
        rows = empty_rows(self._leaves, self.num_envs)
        for i in np.flatnonzero(ended):
            if final[i] is None:
                raise WorkerError(f"sub-env {i}: its episode ended and info['final_obs'] has None for it")
            write_row(rows, int(i), final[i], self._leaves)
        return rows


def _where(mask: Any, yes: Any, no: Any) -> Any:
    rows = no.copy()
    rows[mask] = yes[mask]
    return rows


def _autoreset_mode(env: gym.vector.VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    try:
        return mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            Problem(
                "env.name",
                f"{env} does not say how it resets rows whose episode ended: its metadata['autoreset_mode'] is "
                f"{mode!r} and must be one of gymnasium.vector.AutoresetMode",
            )
        ) from None
