"""What envs say in ``info`` when an episode ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlightning.env.missing_names import MissingNames
from rlightning.errors import ShapeError


class EpisodeInfo:
    """Picks the numbers of some names from the ``info`` of rows whose episode ended.

    Args:
        asked: Names that the user asked for; one that ``info`` lacks is logged once.
        usual: Names that are taken where they are there.
        num_envs: N.
    """

    def __init__(self, asked: Sequence[str] = (), usual: Sequence[str] = (), num_envs: int = 1) -> None:
        self._asked, self._num_envs = tuple(asked), num_envs
        self.names = tuple(dict.fromkeys((*asked, *usual)))
        self._missing = MissingNames()

    def pick(self, infos: Mapping[int, Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Collect the numbers.

        Args:
            infos: Row -> what its env said of the last step of its episode.

        Returns:
            Name -> [N] float64, NaN in rows that did not end or say nothing. Has all names that were asked for, and
            the usual ones that are there.

        Raises:
            ShapeError: If what has such a name is no number; names the sub-env.
        """
        if not self._asked and not any(infos.values()):
            return {}
        picked = {name: np.full(self._num_envs, math.nan) for name in self._asked}
        for row, info in infos.items():
            for name in self.names:
                if name in info:
                    picked.setdefault(name, np.full(self._num_envs, math.nan))[row] = _number(
                        info[name], f"info[{name!r}] of sub-env {row}"
                    )
                elif name in self._asked:
                    self._missing.tell(name, info)
        return picked


def _number(value: Any, what: str) -> float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise ShapeError(f"{what} is a {type(value).__name__} and no number: {value!r}")
    return float(array.item())
