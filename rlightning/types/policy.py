"""The response of a policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlightning.types.tree import Tree


@dataclass(slots=True)
class PolicyResponse:
    """The answer of a policy to the N rows of one request, batch first.

    Attributes:
        action: The action of the log-prob, [N, ...]; the buffer stores it.
        env_action: The action for the env if it differs (clipped, shifted), [N, ...].
        extras: Further tensors that the buffer stores, by name, [N, ...]: ``log_prob`` and the like, or dicts of such.
        version: The version of the weights that acted; set by the framework.
    """

    action: Tree
    env_action: Tree | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    version: int = -1

    @property
    def action_for_env(self) -> Tree:
        """The action of the next step of the env."""
        return self.action if self.env_action is None else self.env_action
