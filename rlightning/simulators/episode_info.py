"""Numbers in ``info`` at the end of an episode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlightning.env.missing_names import MissingNames
from rlightning.errors import ShapeError


class EpisodeInfo:
    """Selects numbers by name from the ``info`` of rows whose episode ended.

    Args:
        required: Names that the user configured; a name that ``info`` lacks is logged once.
        optional: Names that are selected if ``info`` has them.
        num_envs: N.
    """

    def __init__(self, required: Sequence[str] = (), optional: Sequence[str] = (), num_envs: int = 1) -> None:
        self._required, self._num_envs = tuple(required), num_envs
        self.names = tuple(dict.fromkeys((*required, *optional)))
        self._missing = MissingNames()

    def pick(self, infos: Mapping[int, Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Select the numbers.

        Args:
            infos: ``info`` of the last step of an episode, by row.

        Returns:
            [N] float64 by name; NaN in rows whose episode did not end or whose ``info`` lacks the name. Contains every
            required name, and each optional name that some row has.

        Raises:
            ShapeError: If a value is not a number; the message names the sub-env.
        """
        if not self._required and not any(infos.values()):
            return {}
        picked = {name: np.full(self._num_envs, math.nan) for name in self._required}
        for row, info in infos.items():
            for name in self.names:
                if name in info:
                    picked.setdefault(name, np.full(self._num_envs, math.nan))[row] = _number(
                        info[name], f"info[{name!r}] of sub-env {row}"
                    )
                elif name in self._required:
                    self._missing.tell(name, info)
        return picked


def _number(value: Any, label: str) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ShapeError(f"{label} is a {type(value).__name__} and no number: {value!r}")
    return float(array.item())
