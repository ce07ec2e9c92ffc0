"""Curriculum: the level of difficulty of each sub-env, by training steps or by success."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from rlightning.config import Section
from rlightning.simulators.mujoco.worlds import Array, Worlds


class CurriculumOptions(Section):
    """A level from 0 to 1 per sub-env. Tasks can read it, and all ranges of randomisation widen with it."""

    follows: Literal["steps", "success"] = "steps"
    """"steps": the level rises linearly with the steps of the sub-env. "success": it rises with each successful episode
    (``Task.succeeded``), and falls with each other one."""
    start: float = Field(0.0, ge=0, le=1)
    """Level at the beginning of the run."""
    steps: int = Field(100_000, ge=1)
    """Steps of each sub-env from the start to level 1 ("steps")."""
    rise: float = Field(0.05, gt=0, le=1)
    """Rise of the level per successful episode ("success")."""
    fall: float = Field(0.05, ge=0, le=1)
    """Fall of the level per other episode ("success")."""


class Curriculum:
    """Updates the level of each world. Evaluations are at level 1.

    Attributes:
        practised: Steps of each sub-env so far.
    """

    def __init__(self, options: CurriculumOptions, worlds: Worlds) -> None:
        self._options, self._worlds = options, worlds
        self.practised = 0
        worlds.level[:] = options.start

    def step(self, ended: Array, succeeded: Array) -> None:
        """Count a step of all worlds.

        Args:
            ended: True where an episode ended, [N] bool.
            succeeded: True where that episode was a success, [N] bool.
        """
        options, level = self._options, self._worlds.level
        self.practised += 1
        if options.follows == "steps":
            level[:] = min(1.0, options.start + (1.0 - options.start) * self.practised / options.steps)
            return
        level[ended & succeeded] += options.rise
        level[ended & ~succeeded] -= options.fall
        np.clip(level, 0.0, 1.0, out=level)

    def get_state(self) -> dict[str, Any]:
        """Return the levels and the number of steps."""
        return {"level": self._worlds.level.copy(), "practised": self.practised}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of ``get_state``."""
        self._worlds.level[:], self.practised = state["level"], state["practised"]
