"""How hard a task is, by how long or how well it was practised."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from rlightning.config import Section
from rlightning.simulators.mujoco.worlds import Array, Worlds


class CurriculumOptions(Section):
    """A level from 0 to 1 per sub-env, which tasks can read and with which all ranges of randomisation widen."""

    follows: Literal["steps", "success"] = "steps"
    """"steps": the level rises evenly with the steps of the sub-env. "success": it rises with each episode that the
    task calls a success, and falls with each other one."""
    start: float = Field(0.0, ge=0, le=1)
    """Level at the beginning of the run."""
    steps: int = Field(100_000, ge=1)
    """Steps of each sub-env from there to level 1 ("steps")."""
    rise: float = Field(0.05, gt=0, le=1)
    """How much the level rises by a success ("success")."""
    fall: float = Field(0.05, ge=0, le=1)
    """How much it falls by an episode without one ("success")."""


class Curriculum:
    """Keeps the level of each world. Evaluations are at level 1.

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
            ended: Where it ended an episode, [N] bool.
            succeeded: Which of those were a success, [N] bool.
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
        """Return the levels."""
        return {"level": self._worlds.level.copy(), "practised": self.practised}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on with the levels of a state."""
        self._worlds.level[:], self.practised = state["level"], state["practised"]
