"""Which eval policy answers which env worker: pure choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Router(Protocol):
    """Chooses eval policies for requests."""

    def select(self, env_ids: Sequence[int], loads: Sequence[int]) -> list[int]:
        """Choose.

        Args:
            env_ids: Env workers that ask.
            loads: Requests in flight at each eval policy.

        Returns:
            For each env id the index of an eval policy.
        """


class SimpleRouter:
    """Env worker i is always answered by eval policy i modulo their number; the loads do not matter.

    >>> SimpleRouter().select([0, 1, 2], loads=[0, 0])
    [0, 1, 0]
    """

    def select(self, env_ids: Sequence[int], loads: Sequence[int]) -> list[int]:
        count = len(loads)
        return [env_id % count for env_id in env_ids]


class NodeAffinityRouter:
    """Prefers eval policies on the env worker's node; those of a node take turns.

    An env worker on a node without eval policies is answered by any of them.

    >>> NodeAffinityRouter(["a", "b", "a"], ["a", "b"]).select([0, 1, 2], loads=[0, 0])
    [0, 1, 0]
    """

    def __init__(self, env_nodes: Sequence[str], policy_nodes: Sequence[str]) -> None:
        turns: dict[str, int] = {}
        self._choice: list[int] = []
        for env_id, node in enumerate(env_nodes):
            near = [index for index, policy_node in enumerate(policy_nodes) if policy_node == node]
            turn = turns.get(node, 0)
            turns[node] = turn + 1
            self._choice.append(near[turn % len(near)] if near else env_id % len(policy_nodes))

    def select(self, env_ids: Sequence[int], loads: Sequence[int]) -> list[int]:
        return [self._choice[env_id] for env_id in env_ids]
