"""What train policies do together: they start equal, average their gradients, and are compared."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed
from torch import nn

from rlightning.distributed import Communicator, GradientAverage, Group, ParallelMode, open_group
from rlightning.errors import ConfigError, ProtocolError, WeightSyncError
from rlightning.policy.optimizers import optimized
from rlightning.policy.tensors import Held
from rlightning.weights.comparison import digests

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


def infer_train_dp_world_size() -> int:
    """Return the number of train policies that train together.

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

    The communicator is asked for the group each time, because groups are formed again for other members.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._average: GradientAverage | None = None
        self._no_modules: list[torch.Tensor] = []
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
        self.start_equal(policy, networks_only=True)
        self._is_outdated = False
        wrap = getattr(policy, "wrap_with_ddp", None)
        self._is_wrapped = wrap is not None and (self.peers.size > 1 or policy.train_config.is_ddp)
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
        """Check that the networks belong to the group that there is.

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

        What no module holds is learned as well: what an optimizer was given, such as a temperature, and what an author
        lists.
        """
        if self._average is not None:
            listed = () if policy._tensors.lists_plainly else policy._tensors.held().listed.values()
            self._no_modules = [*optimized(policy), *(tensor for tensor in listed if tensor.requires_grad)]
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
        """Copy the buffers of the first train policy, after training.

        Those of a normalisation of batches went their own way on each, by what each saw; ``DistributedDataParallel``
        decides the same for them. What an author lists and no optimizer updates, such as a table, counts among them.
        """
        if self.peers.size > 1:
            held = policy._tensors.held()
            learned = {tensor.data_ptr() for tensor in optimized(policy)}
            buffers = {name: one for name, one in held.modules.items() if not isinstance(one, nn.Parameter)}
            listed = {name: one for name, one in held.listed.items() if one.data_ptr() not in learned}
            _take_over(policy, Held(buffers, listed, {}), self.peers)

    def check_ranks(self, policy: BasePolicy) -> None:
        """Compare all that learns or acts, bit for bit, with what the other train policies have.

        Raises:
            WeightSyncError: Names the ranks and the tensors that differ.
        """
        own = digests(policy._tensors.held().joined())
        row = torch.tensor([list(bytes.fromhex(digest)) for digest in own.values()], dtype=torch.uint8)
        rows = self.peers.all_gather(row.to(policy.device))
        for rank, other in enumerate(rows):
            if len(other) != len(rows[0]):
                raise WeightSyncError(
                    f"after epoch {policy.epoch} train policy {rank} holds {len(other)} tensors and train policy 0 "
                    f"{len(rows[0])}"
                )
            if not torch.equal(other, rows[0]):
                differ = [name for name, same in zip(own, (other == rows[0]).all(1).tolist(), strict=True) if not same]
                raise WeightSyncError(
                    f"after epoch {policy.epoch} train policy {rank} differs from train policy 0 in {len(differ)} of "
                    f"{len(own)} tensors: {', '.join(differ[:10])}"
                )

    def start_equal(self, policy: BasePolicy, *, networks_only: bool = False) -> None:
        """Copy all that learns or acts from the first train policy.

        Args:
            policy: A policy whose networks are built.
            networks_only: Leave out what only optimizers hold, which may be those of networks before.

        Raises:
            WeightSyncError: If the others have something else.
        """
        peers = self.peers
        if peers.size == 1:
            return
        held = policy._tensors.held()
        if networks_only:
            held = held._replace(learned={})
        layout = repr([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in held.joined().items()])
        digest = torch.tensor(list(hashlib.blake2b(layout.encode(), digest_size=16).digest()), dtype=torch.uint8)
        layouts = peers.all_gather(digest.to(policy.device))
        strange = [rank for rank, other in enumerate(layouts) if not torch.equal(other, layouts[0])]
        if strange:
            raise WeightSyncError(
                f"the networks of the train policies {strange} have other names, shapes or dtypes than those of train "
                f"policy 0: construct_network and setup_optimizer must build the same on all of them"
            )
        _take_over(policy, held, peers)

    def _average_over_peers(self, policy: BasePolicy) -> None:
        self._end_average()
        if self.peers.size > 1:
            # Weakly, so that only its users keep a policy.
            learner = cast("BasePolicy", weakref.proxy(policy))
            self._average = GradientAverage(lambda: self._learned(learner), self.peers)
            self.look_anew(policy)

    def _learned(self, policy: BasePolicy) -> Iterator[torch.Tensor]:
        for module in (policy, *(module for _, module in policy._tensors.models())):
            yield from module.parameters()
        yield from self._no_modules

    def _end_average(self) -> None:
        if self._average is not None:
            self._average.close()
            self._average = None


def _take_over(policy: BasePolicy, held: Held, peers: Group) -> None:
    """Copy the values of rank 0 into some tensors of all; nothing to do where there are none."""
    tensors = held.joined()
    if not tensors:
        return
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    sent = torch.split(peers.broadcast_(torch.cat([piece.to(policy.device) for piece in flat])), list(map(len, flat)))
    values = {
        name: piece.clone().view(tensor.dtype).view(tensor.shape)
        for (name, tensor), piece in zip(tensors.items(), sent, strict=True)
    }
    given = Held(*({name: values[name] for name in part} for part in held))
    policy._tensors.put_back(held, given, policy.version)
