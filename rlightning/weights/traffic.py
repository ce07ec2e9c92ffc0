"""How many bytes of weights one push brings over which link: pure functions over a placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlightning.weights.topology import build_transfer_info_for_disaggregated, strategy_named, transport

PAIRED, BROADCAST = "shared memory", "broadcast"
"""Ways that do not follow from the strategy of the weight buffer: between colocated policies, and by a group."""


@dataclass(frozen=True, slots=True)
class WeightRoute:
    """The way of one push to the eval policies of one node.

    Attributes:
        sender: Name of the train policy that sends.
        node: Its node.
        target: The node that receives.
        receivers: Names of the eval policies that act with the weights there.
        how: The way.
        link_bytes: Bytes over the network, out of ``node`` and into ``target``.
        node_bytes: Bytes that are copied within ``target``.
    """

    sender: str
    node: str
    target: str
    receivers: tuple[str, ...]
    how: str
    link_bytes: int
    node_bytes: int


def weight_routes(
    placement: Mapping[str, Mapping[str, Sequence[str]]],
    strategy: str,
    num_bytes: int,
    *,
    broadcast: bool = False,
    node_memory: bool = False,
    local: str = "",
) -> list[WeightRoute]:
    """List the ways of one push.

    The object store fetches what it holds once per node, whatever the number of receivers; they copy it out. A
    broadcast reaches each receiver by itself. Into shared memory one copy is written per node; out of memory that is
    handed on within a node, each receiver copies its own.

    Args:
        placement: Node -> names of its policies by role; see ``rlightning.weights.topology``.
        strategy: ``policy.weight_buffer.buffer_strategy``.
        num_bytes: Bytes of a bundle.
        broadcast: Whether weights travel by a communication group instead of the object store.
        node_memory: Whether the processes of a node hand weights on by memory that they share.
        local: Name of the node that is this process, without processes of its own.
    """
    router_map, info = build_transfer_info_for_disaggregated(placement, strategy)
    routes = []
    for node, items in info.items():
        for target, item in zip(router_map[node], items, strict=True):
            receivers = tuple(placement[target]["eval_policies"])
            same_process = node == target == local
            copies = len(item["receiver"]) if broadcast else 1
            how = transport(strategy, same_process=same_process, intra_node=item["intra_node"], node_memory=node_memory)
            if broadcast and item["receiver"] and not same_process:
                how = BROADCAST
            # The sender copies them into memory first, except into that with which all act ("Shared").
            is_handed_on = node_memory and item["intra_node"] and bool(item["receiver"]) and not same_process
            per_node = strategy_named(strategy).is_per_node
            routes.append(
                WeightRoute(
                    sender=item["sender"],
                    node=node,
                    target=target,
                    receivers=receivers,
                    how=how,
                    link_bytes=0 if item["intra_node"] else copies * num_bytes,
                    node_bytes=num_bytes * ((1 if per_node else len(receivers)) + is_handed_on),
                )
            )
    return routes


def paired_routes(pairs: Iterable[tuple[str, str, str, str]], num_bytes: int) -> list[WeightRoute]:
    """List the ways between colocated policies: each train policy hands its weights to its eval policy.

    Args:
        pairs: Train policy, its node, eval policy, its node.
        num_bytes: Bytes of a bundle.
    """
    return [
        WeightRoute(sender, node, target, (receiver,), PAIRED, 0 if node == target else num_bytes, num_bytes)
        for sender, node, receiver, target in pairs
    ]


def busiest(routes: Iterable[WeightRoute]) -> tuple[dict[str, int], dict[str, int]]:
    """Sum up the bytes of a push per link: out of each node, and into each."""
    out: dict[str, int] = {}
    into: dict[str, int] = {}
    for route in routes:
        if route.link_bytes:
            out[route.node] = out.get(route.node, 0) + route.link_bytes
            into[route.target] = into.get(route.target, 0) + route.link_bytes
    return out, into
