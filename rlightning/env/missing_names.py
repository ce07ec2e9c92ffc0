"""Names of ``env.logged_info`` that an env does not have."""

from __future__ import annotations

import logging
from collections.abc import Collection

from rlightning.errors import nearest_name

_log = logging.getLogger(__name__)


class MissingNames:
    """Logs each name that ``info`` lacks once, with the nearest name of ``info``."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def tell(self, name: str, known: Collection[str]) -> None:
        """Log that a name is unknown, the first time."""
        if name not in self._logged:
            self._logged.add(name)
            nearest = nearest_name(name, known)
            hint = f"; did you mean {nearest}?" if nearest else ""
            _log.warning("env.logged_info: no %r in info, which has %s%s", name, ", ".join(known) or "none", hint)
