"""Consecutive whole transitions of one env worker: the unit that is collected, sent and stored."""

from __future__ import annotations

from dataclasses import dataclass

from rlightning.types.tree import Tree


@dataclass(frozen=True, slots=True)
class Fragment:
    """Whole transitions of consecutive steps of one env worker.

    Attributes:
        env_id: The env worker.
        fields: The fields of a rollout block by name, numpy arrays [T, N, ...]; ``version`` is that of each row.
        policy_state: What the policy remembered of each sub-env before the first row, [N, ...]; None where it remembers
            nothing. No policy of this version writes it.
    """

    env_id: int
    fields: dict[str, Tree]
    policy_state: Tree | None = None
