"""What a policy answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlightning.types.tree import Tree


@dataclass(slots=True)
class PolicyResponse:
    """The answer of a policy to the N rows of one request, batch first.

    Attributes:
        action: The action that belongs to the log-prob, [N, ...]; this is what the buffer keeps.
        env_action: The action that the env receives where it is another one (clipped, shifted), [N, ...].
        extras: Further tensors to keep beside the action, by name, [N, ...]: ``log_prob`` and the like. Several that
            belong together may be a dict of them.
        version: The version of the weights that acted; written by the framework.
    """

    action: Tree
    env_action: Tree | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    version: int = -1

    @property
    def action_for_env(self) -> Tree:
        """The action to step the env with."""
        return self.action if self.env_action is None else self.env_action
