"""The episodes of the sub-envs of one worker: their returns, lengths and logged numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlightning.config import EnvConfig
from rlightning.env.arrays import any_true
from rlightning.env.missing_names import MissingNames
from rlightning.errors import WorkerError
from rlightning.types import EnvRet

SUCCESS = "is_success"
"""Gymnasium's name of the flag of an episode that reached its goal; logged as a success rate."""


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode.

    Attributes:
        return_: Sum of its rewards.
        length: Steps.
        truncated: Whether it was truncated and did not end in a terminal state.
        task: The task's label in metrics.
        worker: Index of the env worker.
        sub_env: Row of the sub-env.
        info: The last value of each number of ``info`` that is logged, by name.
    """

    return_: float
    length: int
    truncated: bool
    task: str
    worker: int
    sub_env: int
    info: dict[str, float] = field(default_factory=dict)


class EpisodeCounter:
    """Sums up the running episodes, and stores those that ended until they are asked for.

    Args:
        config: The env's configuration: its label in metrics and the numbers of ``info`` that are logged.
        index: Index of the env worker.
        worker: Role and index of the worker, for messages.
        num_envs: N.

    Attributes:
        steps: Steps so far.
    """

    def __init__(self, config: EnvConfig, index: int, worker: str, num_envs: int) -> None:
        self._task, self._index, self._worker = config.task or config.name, index, worker
        self._names = tuple(dict.fromkeys((*config.logged_info, SUCCESS)))
        self._missing = MissingNames()
        self.steps = 0
        self._returns = np.zeros(num_envs, np.float64)
        self._began = np.zeros(num_envs, np.int64)  # the step after which the episode of each row began
        self._ended: list[Episode] = []

    def begin(self, rows: Any = slice(None)) -> None:
        """Begin new episodes; those that run are forgotten."""
        self._returns[rows] = 0.0
        self._began[rows] = self.steps

    def add(self, ret: EnvRet) -> None:
        """Count a step."""
        self.steps += 1
        self._returns += ret.reward
        if any_true(ret.is_reset):
            self.begin(ret.is_reset)
        if ret.final_observation is not None:
            for row in np.flatnonzero(ret.ended).tolist():
                self._end(self._last_info(ret.info, row), row, truncated=not ret.terminated[row])

    def cut(self, length: int) -> list[int]:
        """Count the running episodes of at least ``length`` steps as truncated; return their rows."""
        rows: list[int] = np.flatnonzero(self.steps - self._began >= length).tolist()
        for row in rows:
            self._end({}, row, truncated=True)
        return rows

    def pop(self) -> list[Episode]:
        """Return the episodes that ended since the last call, in the order of their ends."""
        ended, self._ended = self._ended, []
        return ended

    def get_state(self) -> dict[str, Any]:
        """Return all counts, for ``set_state``."""
        return {
            "steps": self.steps,
            "returns": self._returns.copy(),
            "began": self._began.copy(),
            "episodes": [[e.return_, e.length, e.truncated, e.sub_env, e.info] for e in self._ended],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state of ``get_state``, which may have further keys."""
        self.steps = state["steps"]
        self._returns[:], self._began[:] = state["returns"], state["began"]
        self._ended = [self._episode(*values) for values in state["episodes"]]

    def _end(self, info: dict[str, float], row: int, *, truncated: bool) -> None:
        return_, length = float(self._returns[row]), int(self.steps - self._began[row])
        self._ended.append(self._episode(return_, length, truncated, row, info))
        self.begin(row)

    def _episode(
        self, return_: float, length: int, truncated: bool, row: int, info: dict[str, float] | None = None
    ) -> Episode:
        return Episode(return_, length, truncated, self._task, self._index, row, info or {})

    def _last_info(self, info: dict[str, Any], row: int) -> dict[str, float]:
        """Return the numbers that are logged of an episode; NaN is left out."""
        found = {}
        for name in self._names:
            if name in info:
                if info[name].shape != self._returns.shape or info[name].dtype.kind not in "biuf":
                    raise WorkerError(f"info[{name!r}] is no number per sub-env", self._worker, "step")
                found[name] = float(info[name][row])
            elif name != SUCCESS:
                self._missing.tell(name, info)
        return {name: value for name, value in found.items() if not math.isnan(value)}
