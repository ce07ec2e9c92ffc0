"""Process groups of ``torch.distributed``: how ranks meet, what they do together, and gradients averaged over them."""

from rlightning.distributed.average import GradientAverage
from rlightning.distributed.communicator import Communicator
from rlightning.distributed.groups import SOLO, Group, ParallelMode, open_group
from rlightning.distributed.membership import GroupPlan, Member, plan_groups
from rlightning.distributed.rendezvous import Rendezvous

__all__ = [
    "SOLO",
    "Communicator",
    "GradientAverage",
    "Group",
    "GroupPlan",
    "Member",
    "ParallelMode",
    "Rendezvous",
    "open_group",
    "plan_groups",
]
