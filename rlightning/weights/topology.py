"""Which learner sends its weights to which eval policies, and where they wait: pure functions over a placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlightning.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BufferStrategy:
    """How weights wait at the eval policies.

    Attributes:
        is_buffered: Whether they wait in a buffer until they are announced; else they go straight into force.
        is_per_node: Whether all eval policies of a node act with one buffer.
        in_shares: Whether each of them receives a share of the weights; else the first one receives them for all, or
            a learner of the node writes into the buffer itself.
    """

    is_buffered: bool
    is_per_node: bool
    in_shares: bool


STRATEGIES = {
    "None": BufferStrategy(False, False, False),
    "Double": BufferStrategy(True, False, False),
    "Shared": BufferStrategy(True, True, False),
    "Sharded": BufferStrategy(True, True, True),
}
"""Strategies by name; see ``policy.weight_buffer.buffer_strategy``."""

KEPT_ON_DEVICE = {"WeightBuffer": True, "CPUWeightBuffer": False, "ShardedWeightBuffer": False}
"""Whether a buffer of one policy is on the policy's device; see ``policy.weight_buffer.type``."""

Placement = Mapping[str, Mapping[str, Sequence[Any]]]
"""Node -> ``{"train_policies": [...], "eval_policies": [...]}``."""
TransferInfo = dict[str, list[dict[str, Any]]]
"""Node of the senders -> one item per receiving node."""


def strategy_named(name: str) -> BufferStrategy:
    """Look up a strategy.

    Raises:
        ConfigError: If it is not known.
    """
    if name not in STRATEGIES:
        raise ConfigError(
            f"there is no weight buffer strategy {name!r}: set policy.weight_buffer.buffer_strategy to one of "
            f"{', '.join(STRATEGIES)}"
        )
    return STRATEGIES[name]


def build_transfer_info_for_colocated(train_list: Sequence[Any], eval_list: Sequence[Any]) -> TransferInfo:
    """Pair train and eval policies by their index.

    >>> build_transfer_info_for_colocated(["t0", "t1"], ["e0"])
    {'all': [{'sender': 't0', 'receiver': 'e0'}]}

    Raises:
        ValueError: If there are fewer train than eval policies.
    """
    if len(train_list) < len(eval_list):
        raise ConfigError(
            f"{len(train_list)} train policies for {len(eval_list)} eval policies: colocated policies are pairs, so "
            f"cluster.eval_worker_num is at most cluster.train_worker_num"
        )
    pairs = zip(train_list, eval_list, strict=False)
    return {"all": [{"sender": sender, "receiver": receiver} for sender, receiver in pairs]}


def build_transfer_info_for_disaggregated(
    placement_info: Placement, weight_buffer_strategy: str
) -> tuple[dict[str, list[str]], TransferInfo]:
    """Choose for every node with eval policies one node with train policies that serves it.

    A node with both serves itself. The others are spread round robin over the nodes that have just train policies, or
    over those with both where there are no such nodes.

    Args:
        placement_info: The policies of each node.
        weight_buffer_strategy: One of ``STRATEGIES``.

    Returns:
        Node of the senders -> receiving nodes; and node of the senders -> one item per receiving node with ``sender``
        (the node's train policies take turns), ``receiver`` (the eval policies that are sent to) and ``intra_node``.
        With "Shared" the first eval policy of another node receives for all of them, and none does on the sender's
        own node: there the sender writes into the shared memory itself.

    Raises:
        ValueError: If there are eval policies and no train policy, or the strategy is not known.
    """
    strategy = strategy_named(weight_buffer_strategy)
    trains = {node: list(held.get("train_policies", ())) for node, held in placement_info.items()}
    evals = {node: list(held.get("eval_policies", ())) for node, held in placement_info.items()}
    mixed = [node for node in placement_info if trains[node] and evals[node]]
    servers = [node for node in placement_info if trains[node] and not evals[node]] or mixed
    waiting = [node for node in placement_info if evals[node] and not trains[node]]
    if waiting and not servers:
        raise ConfigError("No train policy found: eval policies have no source of weights")
    router_map: dict[str, list[str]] = {node: [node] for node in mixed}
    for turn, node in enumerate(waiting):
        router_map.setdefault(servers[turn % len(servers)], []).append(node)
    transfer_info: TransferInfo = {}
    for node, receiving in router_map.items():
        transfer_info[node] = [
            {
                "sender": trains[node][turn % len(trains[node])],
                "receiver": _receivers(evals[target], strategy, target == node),
                "intra_node": target == node,
            }
            for turn, target in enumerate(receiving)
        ]
    return router_map, transfer_info


def transport(strategy: str, *, same_process: bool, intra_node: bool, node_memory: bool = False) -> str:
    """Name the way that weights take from a sender to a node.

    Args:
        strategy: One of ``STRATEGIES``.
        same_process: Whether sender and receivers are one process.
        intra_node: Whether they are on one node.
        node_memory: Whether the processes of a node hand weights on by memory that they share.

    >>> transport("Double", same_process=False, intra_node=True, node_memory=True)
    'shared memory'
    """
    if same_process:
        return "in memory"
    kept = strategy_named(strategy)
    if intra_node and (node_memory or writes_itself(kept)):
        return "shared memory"
    return "Ray's object store" + (", then shared memory" if kept.is_per_node else "")


def writes_itself(strategy: BufferStrategy) -> bool:
    """Whether a learner writes into the buffer of its own node itself, so that no eval policy there receives."""
    return strategy.is_per_node and not strategy.in_shares


def _receivers(policies: list[Any], strategy: BufferStrategy, intra_node: bool) -> list[Any]:
    if not writes_itself(strategy):
        return policies
    return [] if intra_node else policies[:1]
