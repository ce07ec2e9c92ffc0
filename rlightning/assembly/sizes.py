"""What a run sends and holds, by its plan: bytes of data per epoch, bytes of weights per push, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rlightning.assembly.plan import RunPlan
from rlightning.assembly.workers import WorkerPlan
from rlightning.config import Config
from rlightning.env.env_worker import EnvWorker
from rlightning.placement import Slot
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.registry import lookup
from rlightning.runtime.spawn import WorkerSpec
from rlightning.types import EnvMeta
from rlightning.types.tree import tree_leaves
from rlightning.weights.topology import strategy_named, transport
from rlightning.weights.traffic import PAIRED, WeightRoute, paired_routes, weight_routes

CONTEXT_GB = 0.5
"""GB of a device that each process on it takes for itself, before any tensor; an assumption."""
LOCAL = "this process"
"""Location of policies that are no processes of their own."""
WITHIN = "in memory"
_COLUMN_BYTES = 4 + 3 + 8
"""Reward (float32), three flags, and the version (int64) of one transition."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of what a run moves.

    Attributes:
        observation: Bytes of one observation.
        action: Bytes of one action.
        weights: Bytes of all that acts: parameters and buffers.
        parameters: Trainable numbers.
        loads_whole: Whether weights travel as a whole: the policy has a ``load_state_dict`` of its own, and no buffer.
    """

    observation: int
    action: int
    weights: int
    parameters: int
    loads_whole: bool = False

    @property
    def step(self) -> int:
        """Bytes that one step of one sub-env brings: an observation, an action, and the columns beside them."""
        return self.observation + self.action + _COLUMN_BYTES

    @property
    def transition(self) -> int:
        """Bytes of one row of the data buffer, which has the next observation, too."""
        return self.step + self.observation


@dataclass(frozen=True, slots=True)
class Flow:
    """Data that travel from one kind of worker to another.

    Attributes:
        what: The data.
        sender, receiver: Names of the workers.
        transport: How.
        num_bytes: Bytes per epoch, of all senders to all receivers.
    """

    what: str
    sender: str
    receiver: str
    transport: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that the policies and the buffer of a run are known to need.

    Attributes:
        train: Of one train policy: parameters, gradients, states of the optimizer, buffers.
        eval: Of one eval policy, the copies that wait for their turn among them.
        shard: Of all shards together.
        shared: Of each node with eval policies: copies in shared memory.
        handed_on: Of each node with policies of both roles: the memory by which they hand weights on.
    """

    train: int
    eval: int
    shard: int
    shared: int
    handed_on: int


def env_meta(workers: WorkerPlan) -> EnvMeta:
    """Build one env with a single row and ask it for its spaces."""
    env_class, kind, *rest = workers.env[0].args
    worker = EnvWorker(env_class, kind.model_copy(update={"num_envs": 1}), *rest)
    try:
        return worker.get_meta()
    finally:
        worker.close()


def measure(config: Config, meta: EnvMeta) -> Sizes:
    """Build the policy on the CPU and measure it and the spaces of the env."""
    on_cpu = config.policy.model_copy(update={"train_num_gpus": 0.0, "eval_num_gpus": 0.0})
    policy: BasePolicy = lookup("policy", config.policy.type)(on_cpu, PolicyRole.EVAL)
    policy.init_eval(config.evaluation, meta)
    kept = strategy_named(config.policy.weight_buffer.buffer_strategy)
    tensors = [tensor for module in policy.get_trainable_parameters().values() for tensor in module.values()]
    return Sizes(
        observation=space_bytes(meta.observation_space),
        action=space_bytes(meta.action_space),
        weights=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        parameters=sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad),
        loads_whole=not (policy._tensors.loads_plainly or kept.is_buffered),
    )


def space_bytes(space: gym.Space[Any]) -> int:
    """Count the bytes of one element; float64 travels as float32.

    >>> space_bytes(gym.spaces.Box(-1, 1, (3,), np.float64))
    12
    """
    leaves = [np.asarray(leaf) for leaf in tree_leaves(space.sample())]
    return sum(leaf.size * min(leaf.itemsize, 4) if leaf.dtype.kind == "f" else leaf.nbytes for leaf in leaves)


def flows(plan: RunPlan, sizes: Sizes) -> list[Flow]:
    """List what travels in one epoch."""
    workers, rows = plan.workers, plan.config.train.max_rollout_steps * plan.config.num_envs
    envs, actors, learners, shards = workers.env, workers.eval, workers.train, workers.buffer
    if plan.by_fragment:
        collected = [
            Flow("observations", names_of(envs), names_of(actors), WITHIN, rows * sizes.observation),
            Flow("actions", names_of(actors), names_of(envs), WITHIN, rows * sizes.action),
            _flow("fragments of transitions", actors, shards, rows * sizes.transition),
        ]
    else:
        collected = [
            _flow("observations", envs, actors, rows * sizes.observation),
            _flow("actions", actors, envs, rows * sizes.action),
            _flow("observations and rewards", envs, shards, rows * (sizes.observation + _COLUMN_BYTES)),
            _flow("actions and their extras", actors, shards, rows * sizes.action),
        ]
    copies = 1 if plan.weights.is_per_node else len(actors)
    return [
        *collected,
        _flow("transitions", shards, learners, rows * sizes.transition),
        Flow("weights", names_of(learners), names_of(actors), _weight_transport(plan), sizes.weights * copies),
    ]


def _flow(what: str, senders: Sequence[WorkerSpec], receivers: Sequence[WorkerSpec], num_bytes: int) -> Flow:
    remote = any(spec.remote for spec in (*senders, *receivers))
    return Flow(what, names_of(senders), names_of(receivers), "Ray's object store" if remote else WITHIN, num_bytes)


def _weight_transport(plan: RunPlan) -> str:
    """Name the way of the weights if all workers of a kind live on one node."""
    if plan.weights.is_paired:
        return PAIRED
    remote = {spec.remote for spec in (*plan.workers.train, *plan.workers.eval)}
    return transport(
        plan.weights.strategy,
        same_process=remote == {False},
        intra_node=remote == {True},
        node_memory=plan.weights.by_node_memory,
    )


def names_of(specs: Sequence[WorkerSpec]) -> str:
    """Name workers of one kind together: ``env[0..7]``."""
    role = specs[0].name.partition("[")[0]
    return f"{role}[0]" if len(specs) == 1 else f"{role}[0..{len(specs) - 1}]"


def routes_of(plan: RunPlan, num_bytes: int) -> list[WeightRoute]:
    """List the ways of a push of weights of ``num_bytes`` over a plan."""
    way, learners, actors = plan.weights, plan.workers.train, plan.workers.eval
    placed = plan.nodes()
    node = {spec.name: placed.get(spec.name, LOCAL) for spec in (*learners, *actors)}
    if way.is_paired:
        pairs = zip([spec.name for spec in learners], [spec.name for spec in actors], strict=False)
        return paired_routes([(one, node[one], two, node[two]) for one, two in pairs], num_bytes)
    held: dict[str, dict[str, list[str]]] = {}
    for kind, specs in (("train_policies", learners), ("eval_policies", actors)):
        for spec in specs:
            held.setdefault(node[spec.name], {"train_policies": [], "eval_policies": []})[kind].append(spec.name)
    return weight_routes(
        held, way.strategy, num_bytes, broadcast=way.is_broadcast, node_memory=way.by_node_memory, local=LOCAL
    )


def memory_of(plan: RunPlan, sizes: Sizes) -> Memory:
    """Count what is known before a run; activations, simulators and libraries come on top."""
    config, weights = plan.config, sizes.weights
    optim, waiting = config.policy.optim_cfg, config.policy.weight_buffer
    states = 2 if optim.name in ("adam", "adamw") else 1 if optim.momentum else 0
    double = waiting.buffer_strategy == "Double" and waiting.type == "WeightBuffer"
    are_processes = config.cluster.remote_train and config.cluster.remote_eval
    is_copied = plan.weights.by_node_memory and waiting.buffer_strategy != "Shared"
    bucket = weights if sizes.loads_whole else min(weights, int(1e6 * waiting.bucket_mb))
    steps = config.buffer.capacity or config.train.max_rollout_steps
    return Memory(
        train=weights + (1 + states) * 4 * sizes.parameters,
        eval=weights * (3 if double else 1),
        shard=steps * config.num_envs * sizes.transition,
        shared=2 * weights if plan.weights.is_per_node else 0,
        handed_on=bucket if are_processes and is_copied else 0,
    )


def device_memory(slots: Sequence[Slot], device: int, memory: Memory) -> float:
    """Estimate the GB in use on one device of a node.

    Args:
        slots: Workers on the node.
        device: Index of the device.
        memory: What policies need.
    """
    users = [slot for slot in slots if device in slot.devices]
    policies = sum({"train": memory.train, "eval": memory.eval}.get(slot.role, 0) for slot in users)
    return policies / 1e9 + CONTEXT_GB * len({slot.process for slot in users})


def host_memory(slots: Sequence[Slot], num_shards: int, memory: Memory) -> float:
    """Estimate the GB of host memory that data and weights take on a node; processes come on top."""
    roles = {slot.role for slot in slots}
    total = memory.shared * ("eval" in roles) + memory.handed_on * ({"train", "eval"} <= roles)
    for slot in slots:
        if slot.role == "buffer":
            total += memory.shard // max(1, num_shards)
        elif slot.role in ("train", "eval") and not slot.devices:
            total += memory.train if slot.role == "train" else memory.eval
    return total / 1e9
