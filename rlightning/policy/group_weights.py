"""The learners' weights on their way to the eval policies: sent, announced, in force, compared."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from rlightning.config import PolicyConfig
from rlightning.errors import PlacementError, ProtocolError, WeightSyncError, WorkerError
from rlightning.policy.author_checks import is_inherited
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.members import NO_LEARNER, Members
from rlightning.runtime import WorkerHandle
from rlightning.weights.comparison import Mismatch, differences
from rlightning.weights.hooks import CHANNEL
from rlightning.weights.sync import Delivery, WeightSync, by_broadcast, by_handle, by_object_store
from rlightning.weights.topology import (
    build_transfer_info_for_colocated,
    build_transfer_info_for_disaggregated,
    strategy_named,
)

logger = logging.getLogger(__name__)

_SETTLE_S = 60.0
"""Seconds to wait for weights that were announced before others are sent."""


_NUMBERS = itertools.count()
_PREPARED: dict[int, int] = {}
"""For each policy, by ``_identity``, the number of its last preparation by a group of this process."""


_BROADCASTS: dict[str, bool | None] = {"auto": None, "object_store": False, "collective": True}
"""Whether ``policy.weight_buffer.transport`` asks for a broadcast; None leaves it to the devices."""


def broadcasts_weights(config: PolicyConfig) -> bool:
    """Whether weights travel by a broadcast, as they do between accelerators, and not by the object store.

    Shares go to one receiver each, which is no broadcast.
    """
    chosen = _BROADCASTS[config.weight_buffer.transport]
    if chosen is not None:
        return chosen
    on_accelerators = config.train_num_gpus > 0 and config.eval_num_gpus > 0
    return on_accelerators and not strategy_named(config.weight_buffer.buffer_strategy).in_shares


def uses_node_memory(config: PolicyConfig) -> bool:
    """Whether weights travel between processes of one node by memory that they share."""
    return _BROADCASTS[config.weight_buffer.transport] is None and not broadcasts_weights(config)


_HOOKS = (
    BasePolicy.send_weights,
    BasePolicy.recv_weights,
    BasePolicy.send_weights_ipc,
    BasePolicy.recv_weights_ipc,
    BasePolicy.export_bundle,
    BasePolicy.import_bundle,
)


def count_buckets(policy: Any, is_direct: bool) -> int:
    """Return the number of buckets that a policy can send or take.

    Args:
        policy: A policy, or a test double.
        is_direct: Whether weights go straight into force.

    Returns:
        1 for one that must get a whole bundle, as it loads weights in its own way; 0 for one that has methods of the
        author's for sending or receiving, or offers the hooks of the contract alone.
    """
    if not all(is_inherited(type(policy), hook) for hook in _HOOKS):
        return 0
    acts_by_own_loading = policy.role_type is PolicyRole.EVAL and not policy._tensors.loads_plainly
    return 1 if is_direct and acts_by_own_loading else len(policy._weight_port.runs())


class GroupWeights:
    """Brings the weights of the train policies of a group to its eval policies.

    It owns the way that they take, which is chosen before the first transfer and whenever the policies are others, and
    knows what was sent, announced, and is in force.

    Attributes:
        is_colocated: Whether each eval policy gets the weights of the train policy beside it.
        version: What was announced to all eval policies; None before that.
        pending: Eval policy -> the version that it was told of, where it is not known to be in force.
    """

    def __init__(self, members: Members, config: PolicyConfig) -> None:
        self._members, self._config = members, config
        self.is_colocated = False
        self.version: int | None = None
        self.pending: dict[WorkerHandle, int] = {}
        self._strategy, self._kept = "None", strategy_named("None")
        self._way: WeightSync | None = None
        self._number = -1  # of the preparation of the way
        self._is_unannounced = False  # whether weights were sent and not announced
        self._sent_version = -1

    # The way

    def place(self, is_colocated: bool) -> None:
        """Set whether the policies are colocated, wherever they are now."""
        self.is_colocated, self._way = is_colocated, None

    def choose(self, strategy: str) -> None:
        """Choose a strategy by its name.

        Raises:
            ConfigError: If it is not known.
        """
        self._strategy, self._kept, self._way = strategy, strategy_named(strategy), None

    def forget_buffers(self) -> None:
        """Make new buffers before the next transfer."""
        self._way, self._is_unannounced = None, False
        self.pending = {}
        for member in self._members.handles():
            _PREPARED.pop(_identity(member.target), None)  # other groups have to prepare them anew as well

    def deliveries(self) -> list[Delivery]:
        """Apply the transfer plan to the policies where they are now."""
        if self.is_colocated:
            return self._pairs()
        placement = self._members.placement()
        router_map, transfer_info = build_transfer_info_for_disaggregated(placement, self._strategy)
        return [
            Delivery(
                item["sender"],
                tuple(item["receiver"]),
                tuple(placement[target]["eval_policies"]),
                self._kept.in_shares,
                item["intra_node"],
            )
            for node, targets in router_map.items()
            for target, item in zip(targets, transfer_info[node], strict=True)
        ]

    def _pairs(self) -> list[Delivery]:
        """Return the deliveries from each learner to the eval policy beside it."""
        pairs = build_transfer_info_for_colocated(self._members.learners, self._members.actors)["all"]
        for pair in pairs:
            sender, receiver = pair["sender"].info(), pair["receiver"].info()
            if sender.remote and receiver.remote and sender.node != receiver.node:
                raise PlacementError(
                    f"{sender.name} is on node {sender.node} and {receiver.name} on {receiver.node}: colocated "
                    f"policies share a node; set cluster.is_colocated to false, or place them together"
                )
        return [Delivery(pair["sender"], (pair["receiver"],), (pair["receiver"],), False, True) for pair in pairs]

    def _choose_way(self) -> WeightSync:
        """Turn the strategy and the placement into an object that knows which policy sends what to which."""
        kept = strategy_named("None") if self.is_colocated else self._kept
        deliveries = self.deliveries()
        ends = {id(end): end for one in deliveries for end in (one.sender, *one.receivers)}
        found = self._members.run(list(ends.values()), count_buckets, not kept.is_buffered)
        counts = dict(zip(ends, found, strict=True))

        def by_memory(one: Delivery) -> bool:
            both = (one.sender, *one.receivers) if one.intra_node and one.receivers else ()
            return bool(both) and all(counts[id(end)] and end.info().remote for end in both)

        near = uses_node_memory(self._config)
        deliveries = [replace(one, by_memory=near and by_memory(one)) for one in deliveries]
        far = [end for one in deliveries for end in one.receivers if not one.by_memory]
        # An actor of Ray without a channel for weights would take no bucket while a request waits for the last one.
        takes_one_call = any(end.info().remote and end.channel(CHANNEL) is end for end in far)
        carry = by_broadcast if broadcasts_weights(self._config) else by_object_store
        if self.is_colocated:
            carry = by_object_store if all(found) else by_handle
        return WeightSync(kept, deliveries, carry, 1 if takes_one_call else min(found))

    # A push

    def send(self) -> int:
        """Bring the weights to where an announcement puts them in force; return their version, -1 if no policy acts."""
        learners, actors = self._members.learners, self._members.actors
        if not learners:
            raise ProtocolError(NO_LEARNER)
        if not actors:
            return -1
        self.settle()
        if self._is_unannounced:
            # Weights that were not announced may lie complete in some buffers, whose next copy to write is then what
            # their policies act with.
            self._way = None
        members = [_identity(member.target) for member in (*learners, *actors)]
        if any(_PREPARED.get(member) != self._number for member in members):
            self._way = None  # a policy knows one buffer, and another group has prepared one of these since
        if self._way is None:
            self._number = next(_NUMBERS)
            _PREPARED.update(dict.fromkeys(members, self._number))
            way = self._choose_way()
            way.prepare(self._members.timeout_s)
            self._way = way
        self._is_unannounced = True
        self._sent_version = self._way.send(self._members.timeout_s)
        return self._sent_version

    def announce(self) -> None:
        """Announce what was sent last to the eval policies."""
        if self._way is not None:
            if not self._way.is_direct:
                self.pending = dict.fromkeys(self._members.actors, self._sent_version)
            self._way.announce()
            self._is_unannounced = False
            self.version = self._sent_version

    def wait(self, timeout_s: float) -> None:
        """Wait until announced weights are in force; see ``PolicyGroup.wait_for_eval_weight_update``."""
        if self._way is None:
            return
        late = self._way.wait(timeout_s)
        if late:
            raise WeightSyncError(f"new weights are not in force after {timeout_s} s at {', '.join(late)}")
        self.pending = {}

    def settle(self) -> None:
        """Wait until no policy acts with the copies that are written next; one that failed to update does not act."""
        if not self.pending:
            return
        try:
            self.wait(self._members.timeout_s or _SETTLE_S)
        except WorkerError as error:
            if not isinstance(error.__cause__, WeightSyncError):
                raise

    # Comparison

    def compare(self, rtol: float) -> list[Mismatch]:
        """List what of the eval policies is not the first train policy's; see ``PolicyGroup.compare_weights``."""
        learner, actors = self._members.learner(), self._members.actors
        if rtol > 0:
            expected_norms = learner.call(BasePolicy.get_param_fingerprint).result(self._members.timeout_s)
            found_norms = self._members.call(actors, BasePolicy.get_param_fingerprint)
            return [
                mismatch
                for index, norms in enumerate(found_norms)
                for mismatch in differences(index, expected_norms, norms, rtol)
            ]
        version, expected = learner.call(BasePolicy.get_bundle_digest).result(self._members.timeout_s)
        mismatches: list[Mismatch] = []
        for index, (found_version, found) in enumerate(self._members.call(actors, BasePolicy.get_bundle_digest)):
            if found_version != version:
                mismatches.append(Mismatch(index, "version", version, found_version))
            mismatches += differences(index, expected, found)
        return mismatches


def _identity(policy: Any) -> int:
    """Name a policy by a number; several handles of one Ray actor are one policy."""
    return hash(policy) if isinstance(policy, Hashable) else id(policy)


def log_mismatches(mismatches: Sequence[Mismatch]) -> None:
    """Log what differs, up to ten tensors per policy."""
    for policy in sorted({mismatch.policy for mismatch in mismatches}):
        own = [mismatch for mismatch in mismatches if mismatch.policy == policy]
        for mismatch in own[:10]:
            logger.error("weights differ: %s", mismatch)
        if len(own) > 10:
            logger.error("weights differ: eval[%d] has %d more", policy, len(own) - 10)
