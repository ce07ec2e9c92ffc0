"""What train policies do together: they start equal, average their gradients, and are compared."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed
from torch import nn

from rlightning.distributed import Communicator, GradientAverage, Group, ParallelMode, open_group
from rlightning.errors import ConfigError, ProtocolError, WeightSyncError
from rlightning.policy.tensors import all_tensors
from rlightning.policy.training_state import optimizers
from rlightning.weights.bundle import digests

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


def infer_train_dp_world_size() -> int:
    """Tell how many train policies train together.

    Returns:
        The size of the train data parallel group that was formed last in this process; where there is none, that of
        torch's default group; else 1.
    """
    try:
        group = open_group(ParallelMode.TRAIN_DATA_PARALLEL)
        if group is not None:
            return group.size
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_world_size()
    except (RuntimeError, ValueError):
        pass
    return 1


def set_nested_attr(obj: Any, path: str, value: Any) -> None:
    """Set the attribute at a dotted path, as for a wrapper that takes the place of a module.

    Raises:
        AttributeError: If a part is missing; names the part and the object that lacks it.
    """
    *parents, last = path.split(".")
    for part in parents:
        if not hasattr(obj, part):
            raise AttributeError(f"{type(obj).__name__} has no attribute {part!r} (in {path!r})")
        obj = getattr(obj, part)
    if not hasattr(obj, last):
        raise AttributeError(f"{type(obj).__name__} has no attribute {last!r} (in {path!r})")
    setattr(obj, last, value)


class DataParallel:
    """One train policy's part in learning with others; it owns the average of the gradients.

    Who the others are is asked of the communicator each time, because groups are formed again for other members.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._average: GradientAverage | None = None
        self._of_optimizers: list[torch.Tensor] = []
        self._is_wrapped = False  # whether the author's wrap_with_ddp was called for the networks that are there
        self._is_outdated = False  # whether it would have to be called again, for networks that are built anew

    @property
    def peers(self) -> Group:
        """The train policies that learn together; a group of one where a policy learns alone."""
        return self._communicator.group(ParallelMode.TRAIN_DATA_PARALLEL)

    def start(self, policy: BasePolicy) -> None:
        """Make the networks of a policy, which were just built, equal to the others', and average from now on.

        The author's ``wrap_with_ddp`` takes the place of the average.

        Raises:
            WeightSyncError: If the others have other networks.
            ConfigError: If ``wrap_with_ddp`` has no default group of torch to work with.
        """
        self._start_equal(policy)
        self._is_outdated = False
        wrap = getattr(policy, "wrap_with_ddp", None)
        self._is_wrapped = wrap is not None and (self.peers.size > 1 or policy.train_config.parallel == "ddp")
        if wrap is None or not self._is_wrapped:
            self._average_over_peers(policy)
            return
        self._end_average()
        if self.peers.size > 1 and not torch.distributed.is_initialized():
            raise ConfigError(
                f"{type(policy).__name__}.wrap_with_ddp wants torch's default group, which has a place only where "
                f"every train policy is a process of its own: set cluster.remote_train=true, or leave the method "
                f"out, and the framework averages the gradients"
            )
        wrap()

    def regroup(self, policy: BasePolicy) -> None:
        """Go on with the networks that are there in a group that was formed after them.

        What ``wrap_with_ddp`` wraps belongs to one group, and to wrap is a call that all of the group make together.
        So it is left to ``start``; ``require_current`` says so.
        """
        if hasattr(policy, "wrap_with_ddp"):
            self._is_outdated = self._is_wrapped or self.peers.size > 1
        else:
            self._average_over_peers(policy)

    def require_current(self, policy: BasePolicy) -> None:
        """Make sure that the networks belong to the group that there is.

        Raises:
            ProtocolError: If it was formed after ``wrap_with_ddp`` could be called.
        """
        if self._is_outdated:
            raise ProtocolError(
                f"the groups were formed after init_train, and {type(policy).__name__}.wrap_with_ddp wraps networks "
                f"for one group: call PolicyGroup.get_training_state, then init_train, which builds and wraps them "
                f"anew, and load_training_state"
            )

    @contextmanager
    def leaving_on_failure(self) -> Iterator[None]:
        """Leave the other train policies at once where something fails, so that they do not wait for this one."""
        try:
            yield
        except BaseException as error:
            self.peers.close(f"{type(error).__name__}: {error}")
            raise

    def look_anew(self, policy: BasePolicy) -> None:
        """See what there is to learn now, before a phase of learning: an author may add and replace some at any time.

        What an optimizer was given and no module holds, such as a temperature, is learned as well.
        """
        if self._average is not None:
            groups = [group for optimizer in optimizers(policy) for group in optimizer.param_groups]
            self._of_optimizers = [parameter for group in groups for parameter in group["params"]]
            self._average.watch()

    def backward(self, loss: torch.Tensor | None, samples: float) -> None:
        """Run a backward pass that weighs as much as it has samples; see ``BasePolicy.average_backward``."""
        if self._average is not None:
            if loss is None or not samples:
                self._average.join()
            else:
                with self._average.weigh(samples):
                    torch.autograd.backward(loss)
            return
        if loss is None:
            raise ProtocolError(
                "a train policy without samples cannot join where wrap_with_ddp averages, or it is alone"
            )
        if self.peers.size > 1:
            # The author's wrapper lets all count the same: weigh the loss instead.
            total = self.peers.all_reduce_(torch.tensor([float(samples)], dtype=torch.float64, device=loss.device))
            loss = loss * (samples * self.peers.size / total.item())
        torch.autograd.backward(loss)

    def share_buffers(self, policy: BasePolicy) -> None:
        """Take the buffers of the first train policy, after training.

        Those of a normalisation of batches went their own way on each, by what each saw; ``DistributedDataParallel``
        decides the same for them.
        """
        if self.peers.size > 1:
            held = all_tensors(policy).values()
            _take_over([tensor for tensor in held if not isinstance(tensor, nn.Parameter)], self.peers)

    def check_ranks(self, policy: BasePolicy) -> None:
        """Compare all that acts, bit for bit, with what the other train policies have.

        Raises:
            WeightSyncError: Names the ranks and the tensors that differ.
        """
        own = digests(all_tensors(policy))
        row = torch.tensor([list(bytes.fromhex(digest)) for digest in own.values()], dtype=torch.uint8)
        rows = self.peers.all_gather(row.to(policy.device))
        for rank, other in enumerate(rows):
            if not torch.equal(other, rows[0]):
                differ = [name for name, same in zip(own, (other == rows[0]).all(1).tolist(), strict=True) if not same]
                raise WeightSyncError(
                    f"after epoch {policy.epoch} train policy {rank} differs from train policy 0 in {len(differ)} of "
                    f"{len(own)} tensors: {', '.join(differ[:10])}"
                )

    def _start_equal(self, policy: BasePolicy) -> None:
        """Take the parameters and buffers of the first train policy."""
        peers = self.peers
        if peers.size == 1:
            return
        tensors = all_tensors(policy)
        layout = repr([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()])
        digest = torch.tensor(list(hashlib.blake2b(layout.encode(), digest_size=16).digest()), dtype=torch.uint8)
        layouts = peers.all_gather(digest.to(policy.device))
        strange = [rank for rank, other in enumerate(layouts) if not torch.equal(other, layouts[0])]
        if strange:
            raise WeightSyncError(
                f"the networks of the train policies {strange} have other names, shapes or dtypes than those of train "
                f"policy 0: construct_network must build the same on all of them"
            )
        _take_over(list(tensors.values()), peers)

    def _average_over_peers(self, policy: BasePolicy) -> None:
        self._end_average()
        if self.peers.size > 1:
            # Weakly, so that nobody but its user keeps a policy.
            learner = cast("BasePolicy", weakref.proxy(policy))
            self._average = GradientAverage(lambda: self._learned(learner), self.peers)
            self.look_anew(policy)

    def _learned(self, policy: BasePolicy) -> Iterator[torch.Tensor]:
        for module in (policy, *(module for _, module in policy._models())):
            yield from module.parameters()
        yield from self._of_optimizers

    def _end_average(self) -> None:
        if self._average is not None:
            self._average.close()
            self._average = None


def _take_over(tensors: Sequence[torch.Tensor], peers: Group) -> None:
    """Copy the values of rank 0 into the tensors of all; nothing to do where there are none."""
    if not tensors:
        return
    with torch.no_grad():
        flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        sent = torch.split(peers.broadcast_(torch.cat(flat)), [len(piece) for piece in flat])
        for tensor, piece in zip(tensors, sent, strict=True):
            tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))
