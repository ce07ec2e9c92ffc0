"""The training state of a whole group: what its policies share once, and what is each one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlightning.errors import ProtocolError
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.members import Members
from rlightning.policy.training_state import own_state
from rlightning.runtime import gather

_OF_AN_ACTOR = ("role", "generator", "evaluation_generator", "global_generators", "extra", "known_envs")
"""What is an eval policy's own; what it acts with is the learner's."""


def gather_state(members: Members) -> dict[str, Any]:
    """Give all that a resumed run needs.

    Returns:
        "train": the first train policy's state; "train_peers": what is each other one's own; "eval": what is each eval
        policy's own.
    """
    train = members.learner().call(BasePolicy.get_training_state)
    peers = [handle.run(own_state) for handle in members.learners[1:]]
    actors = [handle.call(BasePolicy.get_training_state) for handle in members.actors]
    states = gather([train, *peers, *actors], members.timeout_s)
    count = len(members.learners)
    return {
        "train": states[0],
        "train_peers": states[1:count],
        "eval": [{name: state[name] for name in _OF_AN_ACTOR} for state in states[count:]],
    }


def check_numbers(members: Members, state: Mapping[str, Any]) -> None:
    """Make sure that a state is that of as many policies.

    Raises:
        ProtocolError: If the numbers of policies differ: their generators would not continue.
    """
    learners, actors = len(state["train_peers"]) + 1, len(state["eval"])
    if learners != len(members.learners):
        raise ProtocolError(
            f"the checkpoint is of a run with {learners} train policies, this one has "
            f"{len(members.learners)}: set cluster.train_worker_num={learners}"
        )
    if actors != len(members.actors):
        raise ProtocolError(
            f"the checkpoint is of a run with {actors} eval policies, this one has "
            f"{len(members.actors)}: set cluster.eval_worker_num={actors}"
        )


def load_learners(members: Members, state: Mapping[str, Any]) -> None:
    """Put back the state of all train policies; those that the state does not know keep what is their own."""
    own = [{}, *state["train_peers"]][: len(members.learners)]
    own += members.run(members.learners[len(own) :], own_state)
    states: Sequence[Any] = [{**state["train"], **peer} for peer in own]
    members.call_each(members.learners, BasePolicy.load_training_state, states)


def equalise_learners(members: Members) -> None:
    """Give all train policies that are initialised the state of the first one; what is each one's own stays."""
    first, *others = members.learners
    if not others or len(members.policies(members.learners)) <= len(others):
        return  # a test double has no state
    is_ready, *ready = members.call(members.learners, BasePolicy.is_initialized)
    others = [handle for handle, is_one in zip(others, ready, strict=True) if is_one]
    if is_ready and others:
        train = first.call(BasePolicy.get_training_state).result(members.timeout_s)
        own = members.run(others, own_state)
        members.call_each(others, BasePolicy.load_training_state, [{**train, **one} for one in own])


def _count_peers(policy: BasePolicy) -> int:
    return policy.peers.size


def require_group(members: Members) -> None:
    """Make sure that all train policies learn together.

    Raises:
        ProtocolError: If one of several is in no group of all of them: each would learn something else.
    """
    sizes = members.run(members.policies(members.learners), _count_peers)
    if any(size != len(members.learners) for size in sizes):
        raise ProtocolError(
            f"{len(members.learners)} train policies are to train, and they form no group, so that each would learn by "
            f"itself: call PolicyGroup.init_comm_group before PolicyGroup.init"
        )
