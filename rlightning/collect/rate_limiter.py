"""How far collecting may run ahead of what takes the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable


class RateLimiter:
    """Bounds the fragments that are in flight: asked for, and not handed out yet.

    With two per actor, one is collected while another waits to be handed out, so that no actor waits for a consumer
    that takes as many as come.

    Args:
        per_actor: Most fragments of one actor in flight.

    Attributes:
        peak: Most fragments in flight at a time so far, of all actors together.

    Raises:
        ValueError: If none may be in flight.
    """

    def __init__(self, per_actor: int = 2) -> None:
        if per_actor < 1:
            raise ValueError(f"{per_actor} fragments in flight per actor: at least one is needed")
        self.per_actor = per_actor
        self.peak = 0
        self._counts: Counter[Hashable] = Counter()

    @property
    def in_flight(self) -> int:
        """Fragments in flight now."""
        return self._counts.total()

    def admits(self, actor: Hashable) -> bool:
        """Whether one more may be asked of an actor."""
        return self._counts[actor] < self.per_actor

    def started(self, actor: Hashable) -> None:
        """Count one more fragment of an actor."""
        self._counts[actor] += 1
        self.peak = max(self.peak, self.in_flight)

    def ended(self, actor: Hashable) -> None:
        """Count one fragment of an actor less: it was handed out, or dropped."""
        self._counts[actor] -= 1
