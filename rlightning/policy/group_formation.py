"""Communication groups of the policies of a group, generation after generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rlightning.distributed import Communicator, Member, ParallelMode, plan_groups
from rlightning.policy.base_policy import BasePolicy
from rlightning.policy.members import Members
from rlightning.runtime import Call, WorkerHandle, collective_call

Transfer = tuple[WorkerHandle, Sequence[WorkerHandle]]
"""A sender of weights and its receivers."""


class GroupFormation:
    """Gives every policy a rank and forms groups.

    Attributes:
        generation: How often groups were formed; 0 where there are none.
        options: Backend, and whether eval policies are left out, of the last time.
        is_outdated: Whether somebody who has a rank has left, somebody without one has come, or not all have met.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self.generation = 0
        self.options: tuple[str, bool] = ("nccl", False)
        self.is_outdated = False

    def form(self, backend: str, is_colocated: bool, transfers: Iterable[Transfer]) -> None:
        """Form the groups of those who are there; the ones of before are left.

        Args:
            backend: "nccl" becomes "gloo" where policies have no GPU of their own.
            is_colocated: Leave the eval policies out.
            transfers: Who sends weights to whom; pairs with somebody who is left out are left out.
        """
        self.options = (backend, is_colocated)
        members = self._members
        handles = [*members.learners] if is_colocated else members.everybody()
        if not handles:
            return
        nodes = members.call(handles, BasePolicy._get_node_id)
        devices = members.call(handles, BasePolicy._get_gpu_ids)
        seats = [
            Member(place, nodes[place], tuple(devices[place]), trains=place < len(members.learners))
            for place in range(len(handles))
        ]
        plan = plan_groups(seats, _by_place(transfers, handles), backend)
        by_rank = [handles[seat.member.key] for seat in plan.seats]
        address, port = by_rank[0].run(_listen, len(set(nodes)) == 1).result(members.timeout_s)
        self.generation += 1
        # Some leave their old groups even if others fail to come: nobody is to go on alone then.
        self.is_outdated = True
        # Whoever waits in vain shall say so before the call itself is given up.
        patience = {} if members.timeout_s is None else {"timeout_s": 0.9 * members.timeout_s}
        options = {"generation": self.generation, **patience}
        collective_call(
            [
                Call(
                    handle,
                    BasePolicy.init_distributed_env,
                    (seat.rank, len(handles), seat.local_rank, seat.local_size, address, port, plan.backend),
                    options,
                )
                for handle, seat in zip(by_rank, plan.seats, strict=True)
            ],
            members.timeout_s,
        )
        # Torch's default group can only hold one rank per process.
        alone = all(handle.info().remote for handle in members.learners)
        collective_call(
            [
                Call(
                    by_rank[rank],
                    BasePolicy.init_single_comm_group,
                    (group.ranks, group.mode, group.backend),
                    {"as_default": True} if alone and group.mode is ParallelMode.TRAIN_DATA_PARALLEL else {},
                )
                for group in plan.groups
                for rank in group.ranks
            ],
            members.timeout_s,
        )
        self.is_outdated = False

    def dismiss(self, handle: WorkerHandle) -> None:
        """Have one who has left the group leave its groups too; nobody waits for it, since its process may be gone."""
        if self.generation and self._members.policies([handle]):
            handle.part("_communicator").call(Communicator.close)

    def leave(self) -> None:
        """Have all leave their groups; nobody waits for it, since one whose process is gone has left already."""
        if self.generation:
            for handle in self._members.everybody():
                self.dismiss(handle)
            self.generation = 0


def _listen(policy: BasePolicy, is_on_one_node: bool) -> tuple[str, int]:
    """Have the policy of rank 0 listen; overrides of ``_get_addr_and_port`` have no further parameter."""
    if isinstance(policy, BasePolicy):
        policy._communicator.is_on_one_node = is_on_one_node
    return policy._get_addr_and_port()


def _by_place(transfers: Iterable[Transfer], handles: Sequence[WorkerHandle]) -> list[tuple[int, list[int]]]:
    """Join the transfers of each sender, as places in ``handles``."""
    places = {id(handle.target): place for place, handle in enumerate(handles)}
    joined: dict[int, list[int]] = {}
    for sender, receivers in transfers:
        place = places.get(id(sender.target))
        held = [places[id(receiver.target)] for receiver in receivers if id(receiver.target) in places]
        if place is not None and held:
            joined.setdefault(place, []).extend(held)
    return list(joined.items())
