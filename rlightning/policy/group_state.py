"""The training state of a whole group: what its policies share once, and what is each one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlightning.errors import ProtocolError
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.group_routing import GroupRouting
from rlightning.policy.group_weights import GroupWeights
from rlightning.policy.initial_weights import take_weights
from rlightning.policy.members import Members
from rlightning.policy.training_state import check_extra_training_state, load_own_state, own_state
from rlightning.runtime import gather
from rlightning.weights.hooks import PORT
from rlightning.weights.port import WeightPort

_OF_AN_ACTOR = ("role", "generator", "evaluation_generator", "global_generators", "extra", "known_envs")
"""What is an eval policy's own; what it acts with is the learner's."""


class GroupState:
    """Gathers and restores the state of all policies of a group."""

    def __init__(self, members: Members, routing: GroupRouting, weights: GroupWeights) -> None:
        self._members, self._routing, self._weights = members, routing, weights

    def gather(self) -> dict[str, Any]:
        """Return all that a resumed run needs.

        Returns:
            "train": the first train policy's state; "train_peers": what is each other one's own; "eval": what is each
            eval policy's own; "homes": which eval policy keeps the state of which env worker.
        """
        members = self._members
        train = members.learner().call(BasePolicy.get_training_state)
        peers = [handle.run(own_state) for handle in members.learners[1:]]
        actors = [handle.call(BasePolicy.get_training_state) for handle in members.actors]
        states = gather([train, *peers, *actors], members.timeout_s)
        count = len(members.learners)
        return {
            "train": states[0],
            "train_peers": states[1:count],
            "eval": [{name: state[name] for name in _OF_AN_ACTOR} for state in states[count:]],
            "homes": self._routing.homes(),
        }

    def check_storable(self) -> None:
        """Refuse an ``extra_training_state`` of a policy that no checkpoint can hold: before a run, not at its end.

        Raises:
            WorkerError: Its cause is a ``CheckpointError`` that names the value.
        """
        self._members.run(self._members.policies(self._members.handles()), check_extra_training_state)

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a gathered state, and bring the weights to the eval policies.

        Raises:
            ProtocolError: If the numbers of policies differ: their generators would not continue.
        """
        members = self._members
        for role, handles, count in (
            ("train", members.learners, len(state["train_peers"]) + 1),
            ("eval", members.actors, len(state["eval"])),
        ):
            if count != len(handles):
                raise ProtocolError(
                    f"the checkpoint is of a run with {count} {role} policies, this one has {len(handles)}: set "
                    f"cluster.{role}_worker_num={count}"
                )
        self.load_learners(state)
        self.push_anew()
        gather(
            [handle.run(load_own_state, own) for handle, own in zip(members.actors, state["eval"], strict=True)],
            members.timeout_s,
        )
        self._routing.restore_homes(state.get("homes", []))  # version 0.1.0 kept none

    def load_learners(self, state: Mapping[str, Any]) -> None:
        """Restore the state of all train policies; those that the state does not know keep what is their own."""
        members = self._members
        own = [{}, *state["train_peers"]][: len(members.learners)]
        own += members.run(members.learners[len(own) :], own_state)
        states: Sequence[Any] = [{**state["train"], **peer} for peer in own]
        members.call_each(members.learners, BasePolicy.load_training_state, states)

    def load_weights(self, state: Mapping[str, Any]) -> int:
        """Restore just what acts from a gathered state, and bring it to the eval policies; returns its version."""
        learners, timeout_s = self._members.learners, self._members.timeout_s
        load = BasePolicy.load_training_state
        gather([handle.call(load, state["train"], act_only=True) for handle in learners], timeout_s)
        return self.push_anew()

    def take_weights(self, state: Mapping[str, Any]) -> list[str]:
        """Begin with the weights and normalisers of a gathered state; returns what was not taken."""
        left: list[str] = self._members.run(self._members.learners, take_weights, state["train"])[0]
        return left

    def push_anew(self) -> int:
        """Push weights that may have a lower version than those in force, as after going back to a checkpoint.

        What is in flight comes first: newer weights on their way would be in force after the older ones, and requests
        on their way may wait for those.
        """
        weights, members = self._weights, self._members
        weights.settle()
        self._routing.settle()
        ports = [handle.part(PORT) for handle in members.policies(members.actors)]
        members.call(ports, WeightPort.forget_version)
        version = weights.send()
        weights.announce()
        weights.wait(60.0)
        return version

    def envs_changed(self) -> None:
        """Drop what the train policies hold of the envs so far: from now on, data come from other envs."""
        self._members.call(self._members.learners, BasePolicy.envs_changed)

    def equalise_learners(self) -> None:
        """Copy the first train policy's state to those that are initialised; what is each one's own stays."""
        members = self._members
        first, *others = members.learners
        if not others or len(members.policies(members.learners)) <= len(others):
            return  # a test double has no state
        is_ready, *ready = members.call(members.learners, BasePolicy.is_initialized)
        others = [handle for handle, is_one in zip(others, ready, strict=True) if is_one]
        if is_ready and others:
            train = first.call(BasePolicy.get_training_state).result(members.timeout_s)
            own = members.run(others, own_state)
            members.call_each(others, BasePolicy.load_training_state, [{**train, **one} for one in own])


def require_group(members: Members) -> None:
    """Check that all train policies learn together.

    Raises:
        ProtocolError: If one of several is in no group of all of them: each would learn something else.
    """
    sizes = members.run(members.policies(members.learners), _count_peers)
    if any(size != len(members.learners) for size in sizes):
        raise ProtocolError(
            f"{len(members.learners)} train policies are to train, and they form no group, so that each would learn by "
            f"itself: call PolicyGroup.init_comm_group before PolicyGroup.init"
        )


def _count_peers(policy: BasePolicy) -> int:
    return policy.peers.size
