"""Policies that come to a group, leave it, or change their roles in it, while it trains."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rlightning.config import TrainConfig
from rlightning.errors import CallTimeout, ProtocolError, WeightSyncError, WorkerError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.policy.group_formation import GroupFormation
from rlightning.policy.group_routing import GroupRouting
from rlightning.policy.group_state import GroupState
from rlightning.policy.group_weights import GroupWeights
from rlightning.policy.members import Members
from rlightning.policy.networks import change_role
from rlightning.types import EnvMeta


class GroupRoles:
    """Adds and removes policies, and changes their roles.

    Attributes:
        start: What the train policies were initialised with, and the eval policies; None before that.
    """

    def __init__(
        self,
        members: Members,
        routing: GroupRouting,
        weights: GroupWeights,
        state: GroupState,
        formation: GroupFormation,
        *,
        sends_by_groups: bool,
    ) -> None:
        """Connect the parts of a group.

        Args:
            members: Its policies.
            routing: Its requests.
            weights: Its weights.
            state: Its training state.
            formation: Its communication groups.
            sends_by_groups: Whether weights travel by communication groups, which eval policies then belong to.
        """
        self._members, self._routing, self._weights = members, routing, weights
        self._state, self._formation, self._sends_by_groups = state, formation, sends_by_groups
        self.start: tuple[TrainConfig, EnvMeta | None, Any | None] | None = None

    def push(self, worker: Any, role: PolicyRole) -> None:
        """Add a policy; see ``PolicyGroup.push``."""
        members = self._members
        newcomer = members.add(worker, role)
        self._changed(role)
        try:
            members.run(members.policies([newcomer]), change_role, role)
            count = len(members.policies(members.learners))  # a test double has no state to go on from
            if role is PolicyRole.TRAIN and self.start is not None and 1 < count == len(members.learners):
                members.set_seeds([newcomer], first=count - 1)
                members.call([newcomer], BasePolicy.init_train, *self.start[:2])
                self._formation.form_equal(*self._formation.options)
                self._state.envs_changed()
        except BaseException:
            members.remove([newcomer])
            self._changed(role)
            raise

    def pop(self, role: PolicyRole) -> Any:
        """Remove the policy that came last and return it; see ``PolicyGroup.pop``."""
        held = self._members.of(role)
        if not held:
            raise ProtocolError(f"there is no policy of role {role.value!r} to remove")
        leaving = held[-1]
        self._formation.leave([leaving])
        self._members.remove([leaving])
        self._changed(role)
        return leaving.target

    def convert(self, role: PolicyRole, num: int, keep: int) -> None:
        """Change the role of the last ``num`` policies of the other one, of which ``keep`` stay at least.

        Groups are formed again, and training goes on from where it was.
        """
        members, is_training = self._members, role is PolicyRole.TRAIN
        leaving, joining = (members.actors, members.learners) if is_training else (members.learners, members.actors)
        if not 0 <= num <= len(leaving) - keep:
            raise ProtocolError(
                f"{num} policies cannot become {role.value} policies: {len(leaving)} are there, and {keep} must stay"
            )
        if self.start is None:
            raise ProtocolError("roles change at run time: call init before")
        if num == 0:
            return
        learners = len(members.learners) + (num if is_training else -num)
        if self._weights.is_colocated and learners < len(members.handles()) - learners:
            raise ProtocolError(f"colocated policies are pairs: {learners} train policies would be too few")
        self._weights.settle()
        state, moved, stayed = self._state.gather(), leaving[-num:], len(joining)
        _, env_meta, eval_config = self.start
        members.remove(moved)
        try:
            members.run(moved, change_role, role)
            newcomers = [members.add(handle.target, role) for handle in moved]
            self._form_anew()
            members.set_seeds(newcomers, first=stayed)
            if not is_training:
                members.call(newcomers, BasePolicy.init_eval, eval_config, env_meta)
            self._train_anew(state)
        except Exception:
            # Those that cannot take the role are in the group no more, and the others go on from where they were.
            members.remove(joining[stayed:])
            self._form_anew()
            self._train_anew(state)
            raise
        self._state.push_anew()

    def _form_anew(self) -> None:
        """Form the communication groups of the policies that there are now."""
        self._reroute()
        if len(self._members.learners) > 1 or self._formation.generation:
            self._formation.form(*self._formation.options)

    def _train_anew(self, state: Mapping[str, Any]) -> None:
        """Build all train policies anew, since gradients are averaged by another group, and let them go on."""
        assert self.start is not None
        members = self._members
        members.collective_call(members.learners, BasePolicy.init_train, *self.start[:2])
        self._state.load_learners(state)
        self._state.envs_changed()

    def _changed(self, role: PolicyRole) -> None:
        """Route anew, and let communication groups that a policy came to or left be formed again before their use."""
        self._reroute()
        if self._formation.generation and (role is PolicyRole.TRAIN or self._sends_by_groups):
            self._formation.is_outdated = True

    def _reroute(self) -> None:
        # A policy that left may be gone, and nothing is sent into its buffer again.
        with suppress(WorkerError, WeightSyncError, CallTimeout):
            self._weights.settle()
        self._weights.forget_buffers()
        self._routing.renew()
