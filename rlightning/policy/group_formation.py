"""Communication groups of the policies of a group, generation after generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rlightning.distributed import Communicator, Member, ParallelMode, plan_groups
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.group_state import GroupState
from rlightning.policy.group_weights import GroupWeights
from rlightning.policy.members import Members
from rlightning.runtime import Call, WorkerHandle, collective_call


class GroupFormation:
    """Assigns ranks to the policies and forms their groups.

    Attributes:
        generation: How often groups were formed; 0 where there are none.
        options: Backend, and whether eval policies are left out, of the last time.
        is_outdated: Whether a policy with a rank has left, one without a rank has come, or not all have met.
    """

    def __init__(self, members: Members, weights: GroupWeights, state: GroupState) -> None:
        self._members, self._weights, self._state = members, weights, state
        self.generation = 0
        self.options: tuple[str, bool] = ("nccl", False)
        self.is_outdated = False

    def form_equal(self, backend: str, is_colocated: bool) -> None:
        """Form groups; train policies that are initialised take the state of the first one."""
        self.form(backend, is_colocated)
        if self._members.learners:
            self._state.equalise_learners()

    def renew(self) -> None:
        """Form the groups again where they are not those of the policies that there are."""
        if self.is_outdated:
            self.form_equal(*self.options)

    def form(
        self,
        backend: str,
        is_colocated: bool,
        transfers: Iterable[tuple[WorkerHandle, Sequence[WorkerHandle]]] | None = None,
    ) -> None:
        """Form the groups of the policies that there are; earlier ones are left.

        Args:
            backend: "nccl" becomes "gloo" where policies have no GPU of their own.
            is_colocated: Leave the eval policies out.
            transfers: Senders of weights and their receivers; None asks the transfer plan.
        """
        self.options = (backend, is_colocated)
        members = self._members
        handles = [*members.learners] if is_colocated else members.handles()
        if not handles:
            return
        if transfers is None:
            transfers = [(one.sender, one.receivers) for one in self._weights.deliveries()] if members.learners else []
        nodes = members.call(handles, BasePolicy._get_node_id)
        devices = members.call(handles, BasePolicy._get_gpu_ids)
        known = [
            Member(handle, nodes[i], tuple(devices[i]), trains=i < len(members.learners))
            for i, handle in enumerate(handles)
        ]
        plan = plan_groups(known, _joined(transfers, handles), backend)
        by_rank: list[WorkerHandle] = [each.member.key for each in plan.members]
        address, port = by_rank[0].run(_listen, len(set(nodes)) == 1).result(members.timeout_s)
        self.generation += 1
        # Some leave their old groups even if others fail to come: none is to go on alone then.
        self.is_outdated = True
        # A policy that waits in vain says so before the call itself is given up.
        patience = {} if members.timeout_s is None else {"timeout_s": 0.9 * members.timeout_s}
        options = {"generation": self.generation, **patience}
        meetings = [
            (each.rank, len(handles), each.local_rank, each.local_size, address, port, plan.backend)
            for each in plan.members
        ]
        collective_call(
            [
                Call(handle, BasePolicy.init_distributed_env, meeting, options)
                for handle, meeting in zip(by_rank, meetings, strict=True)
            ],
            members.timeout_s,
        )
        # Torch's default group can only hold one rank per process.
        alone = {"as_default": True} if all(handle.info().remote for handle in members.learners) else {}
        collective_call(
            [
                Call(
                    by_rank[rank],
                    BasePolicy.init_single_comm_group,
                    (group.ranks, group.mode, group.backend),
                    alone if group.mode is ParallelMode.TRAIN_DATA_PARALLEL else {},
                )
                for group in plan.groups
                for rank in group.ranks
            ],
            members.timeout_s,
        )
        self.is_outdated = False

    def leave(self, handles: Sequence[WorkerHandle]) -> None:
        """Call policies to leave their groups, without waiting: their processes may be gone."""
        if self.generation:
            for handle in self._members.policies(handles):
                handle.part("_communicator").call(Communicator.close)


def _listen(policy: BasePolicy, is_on_one_node: bool) -> tuple[str, int]:
    """Open the rendezvous at the policy of rank 0; overrides of ``_get_addr_and_port`` have no further parameter."""
    if isinstance(policy, BasePolicy):
        policy._communicator.is_on_one_node = is_on_one_node
    return policy._get_addr_and_port()


def _joined(
    transfers: Iterable[tuple[WorkerHandle, Sequence[WorkerHandle]]], handles: Sequence[WorkerHandle]
) -> list[tuple[Any, list[Any]]]:
    """Join the transfers of each sender; leave those out that have no rank."""
    joined: dict[Any, list[Any]] = {}
    for sender, receivers in transfers:
        held = [receiver for receiver in receivers if receiver in handles]
        if sender in handles and held:
            joined.setdefault(sender, []).extend(held)
    return list(joined.items())
