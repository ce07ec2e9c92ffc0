"""The rows of all train policies as one batch, so that several of them learn what one would learn from all rows.

Nothing is dropped and nothing padded: a minibatch is a slice of one permutation of all rows, and each train policy
takes those rows of the slice that it holds, which may be none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from rlightning.distributed import Group
from rlightning.models.normalizer import Moments


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """Which rows of the global batch are this train policy's own.

    The rows of all are ordered by time, then by train policy, then as each holds them: the order in which one train
    policy would hold them all.

    Attributes:
        peers: Those who hold the rows.
        places: Place among the own rows of each row of the global batch, [rows of all] int64; -1 where it is another's.
    """

    peers: Group
    places: Tensor

    @classmethod
    def of(cls, times: Tensor, peers: Group) -> GlobalBatch:
        """Order the rows of all; every train policy calls this with its own.

        Args:
            times: Step of each own row within the rollout, [own rows] int32, ascending.
            peers: The train policies.
        """
        parts = peers.all_gather(times)
        order = torch.argsort(torch.cat(parts), stable=True)
        own = order - sum(len(part) for part in parts[: peers.rank])
        return cls(peers, torch.where((own >= 0) & (own < len(times)), own, -1))

    def __len__(self) -> int:
        return len(self.places)

    def cut(self, order: Tensor, batch_size: int) -> Slices:
        """Cut a permutation of the global batch into slices of nearly equal size, the fewest not above ``batch_size``.

        Args:
            order: The permutation, [rows of all] int64, the same on all train policies.
            batch_size: Rows of all train policies together per slice.
        """
        total = len(order)
        count = -(-total // batch_size)
        sizes = [total // count + (place < total % count) for place in range(count)]
        own = self.places[order]
        is_own = own >= 0
        stops = torch.tensor(sizes, device=order.device).cumsum(0)
        held = [0, *is_own.cumsum(0)[stops - 1].tolist()]
        return Slices(own[is_own], [b - a for a, b in pairwise(held)], sizes)


@dataclass(frozen=True, slots=True)
class Slices:
    """A permutation of the global batch, cut into minibatches.

    Attributes:
        index: The own rows in their order, slice after slice, [own rows] int64.
        counts: Own rows of each slice.
        sizes: Rows of all train policies of each slice.
    """

    index: Tensor
    counts: list[int]
    sizes: list[int]

    def normalize(self, advantages: Tensor, peers: Group) -> Tensor:
        """Give advantages mean 0 and standard deviation 1 in each slice, over the rows of all train policies.

        As ``functional.losses.normalized`` does it: a slice of a single row is left as it is.

        Args:
            advantages: Of the own rows in the order of ``index``, [own rows].
            peers: The train policies.
        """
        device = advantages.device
        which = torch.repeat_interleave(torch.tensor(self.counts, device=device))
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=device)
        sums = torch.zeros_like(sizes).index_add_(0, which, advantages.double())
        centred = advantages.double() - (peers.all_reduce_(sums) / sizes)[which]
        squares = torch.zeros_like(sizes).index_add_(0, which, centred.square())
        std = (peers.all_reduce_(squares) / (sizes - 1.0).clamp(min=1.0)).sqrt()
        normal = (centred / (std[which] + 1e-8)).to(advantages.dtype)
        return torch.where((sizes == 1.0)[which], advantages, normal)


def merged_moments(moments: Moments, peers: Group) -> Moments:
    """Give the moments of the rows of all train policies, bit for bit the same on each."""
    row = torch.cat([moments.count.view(1), moments.mean.view(-1), moments.var.view(-1)])
    shape = moments.mean.shape
    parts = []
    for other in peers.all_gather(row):
        mean, var = other[1:].chunk(2)
        parts.append(Moments(other[0], mean.view(shape), var.view(shape)))
    return reduce(Moments.merged, parts)
