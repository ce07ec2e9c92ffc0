"""What of a policy acts: its tensors, where they lie in the bytes that travel, and the memory that they live in."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, NamedTuple, cast

from rlightning.weights.home import Home
from rlightning.weights.layout import Layout, NamedTensors

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


class Look(NamedTuple):
    """What acts at this moment.

    Attributes:
        tensors: The live tensors.
        layout: Their layout.
        home: The memory in which all of them live; None where each has memory of its own.
    """

    tensors: NamedTensors
    layout: Layout
    home: Home | None


class Acting:
    """Knows the layout of what acts, and the home of its tensors where there are many small ones.

    Authors may put other tensors into their modules at any time, so that every use looks anew.
    """

    def __init__(self, policy: BasePolicy) -> None:
        # Weakly: a policy and its tensors end with their last user, and do not wait for the garbage collector.
        self._policy = cast("BasePolicy", weakref.proxy(policy))
        self._layout: Layout | None = None
        self._home: Home | None = None

    def forget(self) -> None:
        """Take note that the networks are built anew."""
        self._layout = self._home = None

    def look(self, *, may_move: bool = False) -> Look:
        """See what acts.

        Args:
            may_move: Whether the tensors may be moved into a home; nobody must be at work on them then.
        """
        tensors = self._policy._tensors.acting()
        if self._home is not None and self._home.holds(tensors):
            return Look(tensors, self._home.layout, self._home)
        self._home = None
        if self._layout is None or not self._layout.fits(tensors):
            self._layout = Layout.of(tensors)
        if may_move:
            self._home = Home.of(tensors, self._layout)
        return Look(tensors, self._layout, self._home)
