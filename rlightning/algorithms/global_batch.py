"""The rows of all train policies as one batch, so that the update is the one of a single learner with all rows.

No row is dropped and none is padded. A minibatch is a slice of one permutation of all rows. Each train policy processes
its own rows of the slice; there may be none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from rlightning.distributed import Group
from rlightning.functional import losses
from rlightning.models.normalizer import Moments


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """Index of this train policy's rows within the global batch.

    The global batch is ordered by time, then by train policy, then by the order within each policy. That is the order
    in which a single train policy would store all rows.

    Attributes:
        peers: The group of the train policies.
        index: Index among the own rows for each row of the global batch, [all rows] int64; -1 for rows of other train
            policies.
    """

    peers: Group
    index: Tensor

    @classmethod
    def of(cls, times: Tensor, peers: Group) -> GlobalBatch:
        """Build the index of the global batch; a collective call of all train policies.

        Args:
            times: Step of each own row within the rollout, [own rows] int32, ascending.
            peers: The group of the train policies.
        """
        times_by_rank = peers.all_gather(times)
        order = torch.argsort(torch.cat(times_by_rank), stable=True)
        own = order - sum(len(each) for each in times_by_rank[: peers.rank])
        return cls(peers, torch.where((own >= 0) & (own < len(times)), own, -1))

    def __len__(self) -> int:
        return len(self.index)

    def cut(self, order: Tensor, batch_size: int) -> Slices:
        """Cut a permutation of the global batch into the fewest slices of nearly equal size up to ``batch_size``.

        Args:
            order: The permutation, [all rows] int64, the same on all train policies.
            batch_size: Largest number of rows per slice, summed over the train policies.
        """
        total = len(order)
        count = -(-total // batch_size)
        sizes = [total // count + (i < total % count) for i in range(count)]
        own = self.index[order]
        is_own = own >= 0
        stops = torch.tensor(sizes, device=order.device).cumsum(0)
        held = [0, *is_own.cumsum(0)[stops - 1].tolist()]
        return Slices(own[is_own], [b - a for a, b in pairwise(held)], sizes)


@dataclass(frozen=True, slots=True)
class Slices:
    """A permutation of the global batch, cut into minibatches.

    Attributes:
        index: The own rows in the order of the slices, [own rows] int64.
        counts: Number of own rows in each slice.
        sizes: Number of rows in each slice, summed over the train policies.
    """

    index: Tensor
    counts: list[int]
    sizes: list[int]

    def normalize(self, advantages: Tensor, peers: Group) -> list[Tensor]:
        """Normalise advantages to mean 0 and standard deviation 1 per slice, over the rows of all train policies.

        Equal to ``functional.losses.normalized``: a slice with a single row is unchanged.

        Args:
            advantages: Advantages of the own rows in the order of ``index``, [own rows].
            peers: The group of the train policies.

        Returns:
            The normalised advantages of the own rows of each slice, [count] each.
        """
        if peers.size == 1:
            return list(map(losses.normalized, torch.split(advantages, self.counts)))
        device = advantages.device
        slices = torch.repeat_interleave(torch.tensor(self.counts, device=device))
        sizes = torch.tensor(self.sizes, dtype=torch.float64, device=device)
        sums = torch.zeros_like(sizes).index_add_(0, slices, advantages.double())
        centred = advantages.double() - (peers.all_reduce_(sums) / sizes)[slices]
        squares = torch.zeros_like(sizes).index_add_(0, slices, centred.square())
        std = (peers.all_reduce_(squares) / (sizes - 1.0).clamp(min=1.0)).sqrt()
        normalized = (centred / (std[slices] + 1e-8)).to(advantages.dtype)
        return list(torch.split(torch.where((sizes == 1.0)[slices], advantages, normalized), self.counts))


def mean_over(values: Tensor, peers: Group) -> Tensor:
    """Return the mean over the rows of all train policies, a scalar that is equal on each.

    Args:
        values: One value per own row, [own rows]; there may be none, where other train policies have some.
        peers: The group of the train policies.
    """
    if peers.size == 1:
        return values.mean()
    own = values.double().sum()
    sums = peers.all_reduce_(torch.stack([own, own.new_tensor(len(values))]))
    return sums[0] / sums[1]


def explained_variance(values: Tensor, returns: Tensor, peers: Group) -> float:
    """Return ``functional.losses.explained_variance`` over the rows of all train policies."""
    if peers.size == 1:
        return losses.explained_variance(values, returns).item()
    moments = merged_moments(Moments.of(torch.stack([returns, returns - values], 1)), peers)
    spread, unexplained = moments.var.tolist()
    return 1.0 - unexplained / spread if spread > 0 else 0.0


def merged_moments(moments: Moments, peers: Group) -> Moments:
    """Return the moments of the rows of all train policies, bit for bit the same on each."""
    if peers.size == 1:
        return moments
    row = torch.cat([moments.count.view(1), moments.mean.view(-1), moments.var.view(-1)])
    shape = moments.mean.shape
    by_rank = []
    for gathered in peers.all_gather(row):
        mean, var = gathered[1:].chunk(2)
        by_rank.append(Moments(gathered[0], mean.view(shape), var.view(shape)))
    return reduce(Moments.merged, by_rank)
