"""The policies of a group, by role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlightning.errors import ProtocolError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.runtime import Call, PartHandle, WorkerHandle, as_handle, collective_call, gather

NO_LEARNER = "the group has no train policy: give one to PolicyGroup, or push one"


@dataclass(frozen=True, slots=True)
class PolicyMethods:
    """The methods by which a group calls a policy.

    A test double offers some hooks of the contract and nothing else. It is asked for them once, when it is wrapped.

    Attributes:
        is_policy: Whether it is a ``BasePolicy``, and no test double.
        rollout_async: Answers a request beside others.
        update_dataset: Takes data.
        train: Trains.
    """

    is_policy: bool
    rollout_async: Any
    update_dataset: Any
    train: Any

    @classmethod
    def of(cls, worker: Any) -> PolicyMethods:
        """Find the methods of a policy, or of the handle of one."""

        def choose(method: Any, other: Any) -> Any:
            return method if hasattr(worker, method.__name__) else other

        return cls(
            choose(BasePolicy._rollout_batch, None) is not None,
            choose(BasePolicy._rollout_async, BasePolicy._rollout),
            choose(BasePolicy._update_dataset, BasePolicy.update_dataset),
            choose(BasePolicy._train, BasePolicy.train),
        )


class Members:
    """The policies of a group, and calls of several of them.

    Attributes:
        learners: The train policies.
        actors: The eval policies.
        methods: Of each policy, the methods by which it is called.
        timeout_s: Seconds that a call may take; None is no limit.
    """

    def __init__(
        self, learners: Sequence[Any], actors: Sequence[Any], timeout_s: float | None, seed: int | None
    ) -> None:
        """Wrap policies or Ray actor handles, which follow from a seed where there is one."""
        self.learners: list[WorkerHandle] = []
        self.actors: list[WorkerHandle] = []
        self.timeout_s, self._seed = timeout_s, seed
        self.methods: dict[WorkerHandle, PolicyMethods] = {}
        for role, workers in ((PolicyRole.TRAIN, learners), (PolicyRole.EVAL, actors)):
            for worker in workers:
                self.add(worker, role)

    def of(self, role: PolicyRole) -> list[WorkerHandle]:
        """Return those of a role; the list itself."""
        return self.learners if role is PolicyRole.TRAIN else self.actors

    def add(self, worker: Any, role: PolicyRole) -> WorkerHandle:
        """Add a policy as the last one of its role."""
        held = self.of(role)
        handle = as_handle(worker, f"{role.value}[{len(held)}]")
        held.append(handle)
        self.methods[handle] = PolicyMethods.of(worker)
        return handle

    def remove(self, handles: Sequence[WorkerHandle]) -> None:
        """Remove some policies."""
        for handle in handles:
            del self.methods[handle]
        self.learners[:] = [handle for handle in self.learners if handle in self.methods]
        self.actors[:] = [handle for handle in self.actors if handle in self.methods]

    def handles(self) -> list[WorkerHandle]:
        """Return all, train policies first."""
        return [*self.learners, *self.actors]

    def learner(self) -> WorkerHandle:
        """Return the first train policy.

        Raises:
            ProtocolError: If there is none.
        """
        if not self.learners:
            raise ProtocolError(NO_LEARNER)
        return self.learners[0]

    def policies(self, handles: Sequence[WorkerHandle]) -> list[WorkerHandle]:
        """Leave the test doubles out."""
        return [handle for handle in handles if self.methods[handle].is_policy]

    def timers(self) -> list[PartHandle]:
        """Return the timers of all policies but test doubles."""
        return [handle.part("_timer") for handle in self.policies(self.handles())]

    def set_seeds(self, handles: Sequence[WorkerHandle], first: int = 0) -> None:
        """Seed some policies by their index in the role, which begins with ``first``; nothing to do without a seed."""
        if self._seed is not None:
            calls = [handle.call(BasePolicy.set_seed, self._seed, index) for index, handle in enumerate(handles, first)]
            gather(calls, self.timeout_s)

    def call(self, handles: Sequence[WorkerHandle | PartHandle], method: Any, *args: Any) -> list[Any]:
        """Call a method of some, none of which waits for another one."""
        return gather([handle.call(method, *args) for handle in handles], self.timeout_s)

    def call_each(
        self, handles: Sequence[WorkerHandle | PartHandle], method: Any, arguments: Sequence[Any]
    ) -> list[Any]:
        """Call a method of some, each with an argument of its own."""
        pairs = zip(handles, arguments, strict=True)
        return gather([handle.call(method, own) for handle, own in pairs], self.timeout_s)

    def run(self, handles: Sequence[WorkerHandle], function: Any, *args: Any) -> list[Any]:
        """Run a function where some policies are, with the policy as its first argument."""
        return gather([handle.run(function, *args) for handle in handles], self.timeout_s)

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
