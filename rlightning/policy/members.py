"""The policies of a group, by role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlightning.errors import ProtocolError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.runtime import Call, PartHandle, WorkerHandle, as_handle, collective_call, gather

NO_LEARNER = "the group has no train policy: give one to PolicyGroup, or push one"


class Members:
    """Who is in a group, and how several of them are called.

    Attributes:
        learners: The train policies.
        actors: The eval policies.
        timeout_s: Seconds that a call may take; None is no limit.
    """

    def __init__(self, learners: Sequence[Any], actors: Sequence[Any], timeout_s: float | None) -> None:
        """Take policies or Ray actor handles."""
        self.learners: list[WorkerHandle] = []
        self.actors: list[WorkerHandle] = []
        self.timeout_s = timeout_s
        for role, workers in ((PolicyRole.TRAIN, learners), (PolicyRole.EVAL, actors)):
            for worker in workers:
                self.add(worker, role)

    def of(self, role: PolicyRole) -> list[WorkerHandle]:
        """Give those of a role; the list itself."""
        return self.learners if role is PolicyRole.TRAIN else self.actors

    def add(self, worker: Any, role: PolicyRole) -> WorkerHandle:
        """Take one more, as the last of its role."""
        held = self.of(role)
        held.append(as_handle(worker, f"{role.value}[{len(held)}]"))
        return held[-1]

    def everybody(self) -> list[WorkerHandle]:
        """Give all, train policies first."""
        return [*self.learners, *self.actors]

    def learner(self) -> WorkerHandle:
        """Give the first train policy.

        Raises:
            ProtocolError: If there is none.
        """
        if not self.learners:
            raise ProtocolError(NO_LEARNER)
        return self.learners[0]

    def policies(self, handles: Sequence[WorkerHandle]) -> list[WorkerHandle]:
        """Return those that are policies of this package: a test double offers the hooks of the contract alone."""
        return [handle for handle in handles if hasattr(handle.target, BasePolicy._rollout_batch.__name__)]

    def run(self, handles: Sequence[WorkerHandle], function: Any, *args: Any) -> list[Any]:
        """Run a function on some, none of which waits for another one; the policy is its first argument."""
        return gather([handle.run(function, *args) for handle in handles], self.timeout_s)

    def call(self, handles: Sequence[WorkerHandle | PartHandle], method: Any, *args: Any) -> list[Any]:
        """Call a method of some, none of which waits for another one."""
        return gather([handle.call(method, *args) for handle in handles], self.timeout_s)

    def call_each(
        self, handles: Sequence[WorkerHandle | PartHandle], method: Any, arguments: Sequence[Any]
    ) -> list[Any]:
        """Call a method of some, each with an argument of its own."""
        pairs = zip(handles, arguments, strict=True)
        return gather([handle.call(method, own) for handle, own in pairs], self.timeout_s)

    def collective_call(self, handles: Sequence[WorkerHandle], method: Any, *args: Any) -> list[Any]:
        """Call a method of some, each of which may wait for the others."""
        return collective_call([Call(handle, method, args) for handle in handles], self.timeout_s)

    def placement(self) -> dict[str, dict[str, list[WorkerHandle]]]:
        """List them by node: node -> ``{"train_policies": [...], "eval_policies": [...]}``."""
        placement: dict[str, dict[str, list[WorkerHandle]]] = {}
        for kind, handles in (("train_policies", self.learners), ("eval_policies", self.actors)):
            for handle in handles:
                entry = placement.setdefault(handle.info().node, {"train_policies": [], "eval_policies": []})
                entry[kind].append(handle)
        return placement
