"""Which env workers and train policies belong to which shard: blocks of neighbours, and on several nodes by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


def blocks(count: int, parts: int) -> list[range]:
    """Cut the numbers from 0 to ``count`` into blocks of nearly equal length, the longer ones first.

    Env workers belong to shards in this way, and so do train policies: what lies side by side in the data of a single
    shard for a single train policy lies in the same order in those of many.

    Args:
        count: How many there are.
        parts: How many blocks.

    >>> blocks(5, 2)
    [range(0, 3), range(3, 5)]
    """
    short, longer = divmod(count, parts)
    starts = [index * short + min(index, longer) for index in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]


@dataclass(frozen=True, slots=True)
class BufferRoutes:
    """Ways of collected data.

    Attributes:
        env_shards: For each env worker the shard that takes its data.
        learner_shards: For each train policy the shard that gives it data.
    """

    env_shards: tuple[int, ...]
    learner_shards: tuple[int, ...]

    def envs_of(self, shard: int) -> list[int]:
        """List the env workers of a shard in their order."""
        return [env for env, owner in enumerate(self.env_shards) if owner == shard]


def routes_in_order(num_env_workers: int, num_shards: int, num_learners: int) -> BufferRoutes:
    """Route data by blocks of neighbours, so that the order of all is kept.

    Raises:
        ValueError: If there is no shard.

    >>> routes_in_order(3, 2, 2)
    BufferRoutes(env_shards=(0, 0, 1), learner_shards=(0, 1))
    """
    return BufferRoutes(_owners(num_env_workers, num_shards), _owners(num_learners, num_shards))


def _owners(count: int, parts: int) -> tuple[int, ...]:
    return tuple(part for part, block in enumerate(blocks(count, parts)) for _ in block)


def routes_by_node(env_nodes: Sequence[str], shard_nodes: Sequence[str], learner_nodes: Sequence[str]) -> BufferRoutes:
    """Route data so that as little of it as can be crosses nodes, and learners get equally much.

    A train policy gets its data from a shard of its node where there is one. Shards take as many env workers as they
    serve train policies, in proportion, those of their own node first. On a single node the routes are ``blocks``.

    Args:
        env_nodes: The node of each env worker.
        shard_nodes: The node of each shard.
        learner_nodes: The node of each train policy.

    Raises:
        ValueError: If there are fewer env workers or train policies than shards.

    >>> routes_by_node(["b", "a", "b", "a"], ["a", "b"], ["a", "b"])
    BufferRoutes(env_shards=(1, 0, 1, 0), learner_shards=(0, 1))
    """
    shards = len(shard_nodes)
    if min(len(env_nodes), len(learner_nodes)) < shards:
        raise ValueError(
            f"{shards} shards for {len(env_nodes)} env workers and {len(learner_nodes)} train policies: each needs one "
            f"of both"
        )
    groups: dict[str, list[int]] = {}
    for shard, node in enumerate(shard_nodes):
        groups.setdefault(node, []).append(shard)
    learners = _learners_of(groups, learner_nodes)
    quotas = _quotas(len(env_nodes), {node: (len(learners[node]), len(owned)) for node, owned in groups.items()})
    envs = _fill(env_nodes, quotas)
    return BufferRoutes(
        _spread(envs, groups, len(env_nodes)),
        _spread(learners, groups, len(learner_nodes)),
    )


def _learners_of(groups: Mapping[str, Sequence[int]], learner_nodes: Sequence[str]) -> dict[str, list[int]]:
    """Return the train policies of each node of shards: those of the node, and others where the fewest are."""
    learners: dict[str, list[int]] = {node: [] for node in groups}
    waiting = []
    for learner, node in enumerate(learner_nodes):
        if node in groups:
            learners[node].append(learner)
        else:
            waiting.append(learner)
    for learner in waiting:
        emptiest = min(groups, key=lambda node: len(learners[node]) / len(groups[node]))
        learners[emptiest].append(learner)
    for node, owned in groups.items():
        # A shard without a train policy would keep its data for itself.
        while len(learners[node]) < len(owned):
            giver = max(groups, key=lambda other: len(learners[other]) - len(groups[other]))
            learners[node].append(learners[giver].pop())
    return {node: sorted(found) for node, found in learners.items()}


def _quotas(count: int, groups: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Share out env workers in proportion to train policies, at least one for each shard.

    Args:
        count: How many env workers.
        groups: Node -> its train policies and its shards.
    """
    total = sum(learners for learners, _ in groups.values())
    quotas = {node: max(shards, count * learners // total) for node, (learners, shards) in groups.items()}

    def lacks(node: str) -> float:
        return count * groups[node][0] / total - quotas[node]

    while sum(quotas.values()) < count:
        quotas[max(groups, key=lacks)] += 1
    while sum(quotas.values()) > count:
        quotas[min((node for node in groups if quotas[node] > groups[node][1]), key=lacks)] -= 1
    return quotas


def _fill(env_nodes: Sequence[str], quotas: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the env workers of each node of shards, as many as its quota, its own ones first."""
    taken: dict[str, list[int]] = {node: [] for node in quotas}
    others = []
    for env, node in enumerate(env_nodes):
        if node in quotas and len(taken[node]) < quotas[node]:
            taken[node].append(env)
        else:
            others.append(env)
    for node, quota in quotas.items():
        missing = quota - len(taken[node])
        taken[node] += others[:missing]
        others = others[missing:]
    return {node: sorted(found) for node, found in taken.items()}


def _spread(members: Mapping[str, Sequence[int]], groups: Mapping[str, Sequence[int]], count: int) -> tuple[int, ...]:
    """Return the shard of each member: those of a node go to its shards in blocks."""
    chosen = [0] * count
    for node, owned in groups.items():
        found = members[node]
        for shard, block in zip(owned, blocks(len(found), len(owned)), strict=True):
            for index in block:
                chosen[found[index]] = shard
    return tuple(chosen)
