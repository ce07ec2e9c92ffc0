"""Hooks of the contract of a policy: what a group calls on each of its policies, and an author rarely.

They are methods of ``BasePolicy``, which names them, so that a subclass may write one anew, and a test double offers
those that its test needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlightning.distributed import ParallelMode
from rlightning.errors import ProtocolError
from rlightning.policy.memory import Part
from rlightning.runtime import own_location
from rlightning.weights.comparison import digests, norms
from rlightning.weights.layout import Bucket, flatten_names
from rlightning.weights.version_buffer import VersionBuffer

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


class AsyncRolloutError(ProtocolError, AssertionError):
    """A call that is only for sync rollouts."""


# Requests


def check_idle(self: BasePolicy) -> None:
    """Return when the policy is free; a sync policy works through one call at a time, so that is now."""
    if self.config.is_async:
        raise AsyncRolloutError("check_idle is for sync rollouts; with async rollouts use get_num_requests")


def get_num_requests(self: BasePolicy) -> int:
    """Count the requests in flight."""
    return self._gate.num_requests


# Weights


def export_bundle(self: BasePolicy) -> Bucket:
    """Copy all that acts, with its version."""
    self._tensors.require_init("export_bundle")
    return self._weight_port.read()


def import_bundle(self: BasePolicy, bundle: Bucket) -> int:
    """Put a bundle in force between two requests, or keep the old one and raise; returns its version."""
    self._tensors.require_init("import_bundle")
    return self._weight_port.put_in_force(bundle)


def send_weights(
    self: BasePolicy,
    receivers: Sequence[Any],
    shared_weight_buffer: VersionBuffer | None = None,
    bucket: int | None = None,
) -> Bucket | int:
    """Return a copy of all that acts, or write it into memory that others map; see ``Hooks.send_weights``."""
    self._tensors.require_init("send_weights")
    if shared_weight_buffer is not None or not receivers:
        self._weight_port.fill(shared_weight_buffer, bucket or 0)
    if not receivers:
        return self.version
    return self.export_bundle() if bucket is None else self._weight_port.read(bucket)


def recv_weights(self: BasePolicy, payload: Bucket | None = None) -> int:
    """Write weights into the buffer, or without one into force; see ``Hooks.recv_weights``."""
    if payload is None:
        return self._weight_port.receive_broadcast()
    is_whole_and_direct = payload.is_whole and not self._weight_port.is_buffered
    return self.import_bundle(payload) if is_whole_and_direct else self._weight_port.write(payload)


def send_weights_ipc(self: BasePolicy) -> Bucket | int:
    """Return the weights for a policy beside this one."""
    return self.send_weights(["the policy beside this one"])


def recv_weights_ipc(self: BasePolicy, payload: Bucket | None, share: tuple[int, int] | None = None) -> int:
    """Copy weights out of memory that a sender of this node writes into; see ``Hooks.recv_weights_ipc``."""
    self._tensors.require_init("recv_weights_ipc")
    return self._weight_port.receive(share) if payload is None else self.recv_weights(payload)


def init_weight_buffer(self: BasePolicy, shared_weight_buffer: VersionBuffer | None = None) -> None:
    """Make a buffer in which weights wait for the next update; see ``Hooks.init_weight_buffer``."""
    if self.role_type != "eval":
        raise ProtocolError(f"weight buffers are for policies of role 'eval'; this one is {self.role_type.value!r}")
    self._tensors.require_init("init_weight_buffer")
    self._weight_port.use(shared_weight_buffer)


def update_weights_from_buffer(self: BasePolicy) -> None:
    """Put the newest complete weights of the buffer in force, between two requests."""
    self._weight_port.update_from_buffer()


def update_weights(self: BasePolicy) -> None:
    """Follow announcements until the policy is gone; runs in a thread where a weight buffer is in use."""
    self._weight_port.run_updater()


def notify_update_weights(self: BasePolicy) -> None:
    """Announce new weights; without a weight buffer they are in force already."""
    self._weight_port.announce()


def wait_for_weight_update_done(self: BasePolicy, timeout: float | None = None) -> bool:
    """Wait until the latest announced weights are in force; see ``Hooks.wait_for_weight_update_done``."""
    return self._weight_port.wait(timeout)


def get_param_fingerprint(self: BasePolicy) -> dict[str, float]:
    """Return the L2 norm of each tensor that acts, by ``module.name``."""
    self._tensors.require_init("get_param_fingerprint")
    return norms(flatten_names(self._tensors.acting()))


def get_bundle_digest(self: BasePolicy) -> tuple[int, dict[str, str]]:
    """Return the version and an exact digest of each tensor that acts: bits, dtype and shape."""
    self._tensors.require_init("get_bundle_digest")
    return self.version, digests(flatten_names(self._tensors.acting()))


# Memory


def offload_model(self: BasePolicy) -> None:
    """Move parameters, buffers and gradients to host memory, between two requests; acting wants them back."""
    self.offload_model_param_and_grad(offload_grad=True)


def reload_model(self: BasePolicy) -> None:
    """Move parameters, buffers and gradients to the device."""
    self.reload_model_param_and_grad(load_grad=True)


def offload_model_param_and_grad(self: BasePolicy, offload_grad: bool) -> None:
    """Move parameters and buffers to host memory, and gradients too where asked; they stay otherwise."""
    with self._gate.update(), self._timer.measure("offload"):
        self._memory.offload_model(self._tensors.in_modules(), with_gradients=offload_grad)


def reload_model_param_and_grad(self: BasePolicy, load_grad: bool) -> None:
    """Move parameters and buffers to the device, and gradients where asked."""
    with self._gate.update(), self._timer.measure("reload"):
        self._memory.reload_model(self._tensors.in_modules(), with_gradients=load_grad)


def offload_optimizer(self: BasePolicy) -> None:
    """Move the state of all optimizers, and what only they hold, to host memory; training wants it back."""
    with self._timer.measure("offload"):
        self._memory.offload(Part.OPTIMIZER, self._tensors.of_optimizers())


def reload_optimizer(self: BasePolicy) -> None:
    """Move the state of all optimizers, and what only they hold, to the device."""
    with self._timer.measure("reload"):
        self._memory.reload(Part.OPTIMIZER, self._tensors.of_optimizers())


# Groups


def _get_node_id(self: BasePolicy) -> str:
    """Return the id of this policy's node; "local" where it is an object of the controller."""
    return own_location()[0]


def _get_gpu_ids(self: BasePolicy) -> list[int]:
    """Return the GPUs that this policy may use, in the numbering of its node; none on the CPU."""
    return [] if self.device == "cpu" else list(own_location()[1])


def _get_addr_and_port(self: BasePolicy) -> tuple[str, int]:
    """Listen where all others can meet this policy; its rank becomes 0."""
    return self._communicator.offer()


def init_distributed_env(
    self: BasePolicy,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    master_addr: str,
    master_port: int,
    backend: str = "gloo",
    **when: Any,
) -> None:
    """Meet all other policies where that of rank 0 listens; see ``Communicator.enter``."""
    self.local_rank, self.local_world_size = local_rank, local_world_size
    self._communicator.enter(rank, world_size, master_addr, master_port, backend, device=self.device, **when)


def init_single_comm_group(
    self: BasePolicy, ranks: Sequence[int], mode: ParallelMode, backend: str = "gloo", as_default: bool = False
) -> None:
    """Form a group; nothing to do where this policy is not among the ranks. See ``Communicator.form``."""
    mode = ParallelMode(mode)
    self._communicator.form(ranks, mode, backend, as_default=as_default)
    if mode is ParallelMode.TRAIN_DATA_PARALLEL and self.is_init and self.role_type == "train":
        self.world_size = self.peers.size
        self._data_parallel.regroup(self)


def get_rank(self: BasePolicy) -> int:
    """Return the rank of this policy among all policies; 0 without groups."""
    return self._communicator.rank


def dist_barrier(self: BasePolicy, mode: ParallelMode | None = None) -> None:
    """Wait until all members of a group have called this; None means the group of all policies."""
    self._communicator.group(ParallelMode.GLOBAL if mode is None else mode).barrier()
