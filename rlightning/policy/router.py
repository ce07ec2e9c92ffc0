"""Which eval policy answers which env worker: pure choices."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Protocol


class Router(Protocol):
    """Chooses eval policies for requests."""

    def select(self, env_ids: Sequence[int], loads: Sequence[int]) -> list[int]:
        """Choose.

        Args:
            env_ids: Numbers of the env workers that ask; negative for those whose ids are no integers.
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


class LoadRouter:
    """Each request goes where the fewest are in flight; of equal ones, to the first.

    >>> LoadRouter().select([0, 1, 2], loads=[2, 0])
    [1, 1, 0]
    """

    def select(self, env_ids: Sequence[int], loads: Sequence[int]) -> list[int]:
        heap = [(load, index) for index, load in enumerate(loads)]
        heapq.heapify(heap)
        chosen = []
        for _ in env_ids:
            load, index = heap[0]
            heapq.heapreplace(heap, (load + 1, index))
            chosen.append(index)
        return chosen


class NodeAffinityRouter:
    """Prefers eval policies on the env worker's node; those of a node take turns.

    An env worker on a node without eval policies, or on an unknown one, is answered by any of them.

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
        known, count = self._choice, len(loads)
        return [known[env_id] if 0 <= env_id < len(known) else env_id % count for env_id in env_ids]


def stick(router: Router, env_ids: Sequence[int], loads: Sequence[int], homes: Mapping[int, int]) -> list[int]:
    """Keep env workers at the policies that hold their state; a router chooses for the others.

    Args:
        router: Chooses for env workers without a home.
        env_ids: Env workers that ask.
        loads: Requests in flight at each eval policy.
        homes: Env id -> index of the policy that keeps its state.

    Returns:
        For each env id the index of an eval policy.

    >>> stick(SimpleRouter(), [0, 1, 2], loads=[0, 0], homes={0: 1})
    [1, 1, 0]
    """
    loads = list(loads)
    for env_id in env_ids:
        if env_id in homes:
            loads[homes[env_id]] += 1
    chosen = iter(router.select([env_id for env_id in env_ids if env_id not in homes], loads))
    return [homes[env_id] if env_id in homes else next(chosen) for env_id in env_ids]
