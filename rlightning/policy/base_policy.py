"""One class that holds networks, optimizer, rollout and training step, in one of two roles."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import inspect
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.distributed
from torch import nn

from rlightning.checkpoint import load_state, save_state
from rlightning.config import OptimConfig, PolicyConfig, Section, TrainConfig
from rlightning.device import pick_device
from rlightning.distributed import Communicator, GradientAverage, Group, ParallelMode, open_group
from rlightning.errors import CheckpointError, ConfigError, ProtocolError, WeightSyncError
from rlightning.observability.timer import Span, Timer
from rlightning.policy.batching import join_requests, own_response, split_response
from rlightning.policy.coroutines import CoroutineThread, hide_coroutines, is_coroutine
from rlightning.policy.gate import RolloutGate
from rlightning.policy.memory import Part, gradients, memory_of, optimizer_tensors
from rlightning.policy.updater import Updater
from rlightning.runtime import own_place
from rlightning.types import EnvMeta, EnvRet, PolicyResponse
from rlightning.types.tree import tree_leaves
from rlightning.weights.bundle import (
    Bundle,
    BundlePart,
    check_same_layout,
    digests,
    flatten_names,
    pack,
    split,
    strip_wrappers,
)
from rlightning.weights.layout import Layout, NamedTensors, as_bytes, copy_all, each, point_all
from rlightning.weights.slots import Slots

if TYPE_CHECKING:
    # A worker that holds no storage starts in two thirds of the time without this import.
    from tensordict import TensorDictBase

_NOTHING_COMES = -2
"""Version that a sender broadcasts instead of weights that it could not read."""
_BUILDING = threading.Lock()
"""Held while networks are drawn from the global generator: several policies of a process may start at once."""

_EVALUATES: ContextVar[bool] = ContextVar("_EVALUATES", default=False)
"""Whether the request at hand belongs to an evaluation; requests that overlap each have a context of their own."""


class PolicyRole(StrEnum):
    """What a policy does in a run."""

    TRAIN = "train"
    """It learns."""
    EVAL = "eval"
    """It acts in rollouts."""


def clone_checkpoint_value(value: Any) -> Any:
    """Copy a checkpoint payload so that later training cannot change what was saved.

    Args:
        value: Nested dicts, lists, tuples, named tuples and dataclasses with any leaves.

    Returns:
        The same structure; tensors are owned, detached, contiguous and on the CPU, other leaves are deep copies.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True).contiguous()
    if isinstance(value, Mapping):
        return {key: clone_checkpoint_value(item) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [clone_checkpoint_value(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [clone_checkpoint_value(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: clone_checkpoint_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
        cloned = copy.copy(value)
        for name, item in fields.items():
            object.__setattr__(cloned, name, item)
        return cloned
    return copy.deepcopy(value)


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
    """Set the attribute at a dotted path.

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


class BasePolicy(nn.Module, ABC):
    """What a user subclasses for an algorithm.

    A subclass builds its networks in ``construct_network``, answers observations in ``rollout_step``, takes data in
    ``update_dataset`` and learns from them in ``train``. The framework calls ``init_train`` or ``init_eval`` once.

    Attributes:
        config: The policy's part of the configuration.
        role_type: What this copy does.
        device: The torch device that it computes on.
        rollout_mode: "sync" or "async": whether ``rollout_step`` is a method or a coroutine.
        is_init: Whether ``init_train`` or ``init_eval`` is done.
        model_list: Name and module of all that acts; filled by the framework where the user leaves it empty.
        dataset: What ``update_dataset`` left for ``train``.
        world_size: Train policies that train together.
        local_rank, local_world_size: Place among the policies of its node, and their number; 0 and 1 without groups.
        epoch: Finished calls of ``train``.
        version: Version of the weights: on the learner it grows by one with each ``train`` and each reset, on an eval
            policy it is that of the bundle it acts with, -1 before the first.
        shared_generator: Draws alike on all train policies, for what they must agree on; only ``train`` and
            ``update_dataset`` may draw from it, and equally often on each.
        train_config: The training options; only on a learner.
        model_options, algo_options: The validated ``model_cfg`` and ``algo_cfg`` where the class declares
            ``ModelOptions`` and ``AlgoOptions``.
    """

    ModelOptions: ClassVar[type[Section] | None] = None
    """Class of ``policy.model_cfg``; None leaves it free-form."""
    AlgoOptions: ClassVar[type[Section] | None] = None
    """Class of ``policy.algo_cfg``; None leaves it free-form."""
    is_stateful: ClassVar[bool] = False
    """Whether answers depend on earlier requests of the same env worker, which then always come to the same policy."""

    train_config: TrainConfig
    env_meta: EnvMeta | None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hide_coroutines(cls)

    def __init__(self, config: PolicyConfig, role_type: PolicyRole) -> None:
        super().__init__()
        self.config = config
        self.role_type = PolicyRole(role_type)
        num_gpus = config.train_num_gpus if self.role_type is PolicyRole.TRAIN else config.eval_num_gpus
        self.device = pick_device(num_gpus)
        self.rollout_mode: str = config.rollout_mode
        self.is_init = False
        self.model_list: list[tuple[str, nn.Module]] = []
        self.dataset: Any | None = None
        self.world_size = 1
        self.epoch = 0
        self.version = -1
        self.env_meta = None
        self.model_options: Any = self.ModelOptions.model_validate(config.model_cfg) if self.ModelOptions else None
        self.algo_options: Any = self.AlgoOptions.model_validate(config.algo_cfg) if self.AlgoOptions else None
        self._seed: int | None = None
        self._seed_index = 0
        self._generator = torch.Generator(self.device)
        self.shared_generator = torch.Generator(self.device)
        self.local_rank, self.local_world_size = 0, 1
        self._communicator = Communicator()
        self._average: GradientAverage | None = None
        self._evaluation_generator = torch.Generator(self.device)
        self._timer = Timer()
        self._gate = RolloutGate(functools.partial(self._timer.measure, "wait"))
        self._memory = memory_of(self.device)
        self._failed_update: BaseException | None = None
        self._layout: Layout | None = None
        self._slots: Slots | None = None
        self._made: Slots | None = None  # the buffer that this policy made for its node
        self._adopted: tuple[Slots, int] | None = None  # whose memory is acted with, and the stamp of what lies there
        self._mapped: Slots | None = None
        self._handed_over: Slots | None = None
        self._updater: Updater | None = None
        self._takes_deterministic = _accepts(type(self).rollout_step, "deterministic")
        self._coroutines: CoroutineThread | None = None
        if self.rollout_mode == "sync" and is_coroutine(type(self).rollout_step):
            raise ConfigError(f"{type(self).__name__}.rollout_step is a coroutine: set policy.rollout_mode=async")

    # What a user writes

    @abstractmethod
    def construct_network(self, env_meta: EnvMeta | None, *args: Any, **kwargs: Any) -> None:
        """Build the networks as attributes of this policy.

        Args:
            env_meta: Spaces of one sub-env; None where the caller gave none.
            *args: For callers of your own; the framework passes none.
            **kwargs: Likewise.

        Raises:
            UnsupportedSpace: If the algorithm cannot serve a space.
        """

    @abstractmethod
    def setup_optimizer(self, optim_cfg: OptimConfig) -> None:
        """Build the optimizer over the networks; its learning rate is ``self.train_config.lr``."""

    @abstractmethod
    def rollout_step(self, env_ret: EnvRet, **kwargs: Any) -> PolicyResponse:
        """Choose actions; runs under ``torch.inference_mode``.

        With ``policy.rollout_mode: async`` it is a coroutine, and requests overlap where it awaits. Threads that it
        hands work to must enter ``torch.inference_mode`` themselves. A plain method takes one request after the other.

        Args:
            env_ret: N rows, possibly of several env workers, as tensors on ``self.device``.
            **kwargs: ``deterministic=True`` asks for the mode of the policy; passed in evaluation only.

        Returns:
            Tensors with N rows.
        """

    @abstractmethod
    def update_dataset(self, data: TensorDictBase) -> None:
        """Take data from the buffer; usually sets ``self.dataset``."""

    @abstractmethod
    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train one step or epoch on ``self.dataset``.

        Returns:
            Metrics, name -> number.
        """

    def postprocess(
        self, env_ret: EnvRet | None = None, policy_resp: PolicyResponse | None = None
    ) -> PolicyResponse | None:
        """Finish an answer after the envs stepped, on the eval side; runs under ``torch.inference_mode``.

        Args:
            env_ret: What came of the answer, as tensors on ``self.device``.
            policy_resp: The answer, likewise.
        """
        return policy_resp

    def get_trainable_parameters(self) -> NamedTensors:
        """Give all that acts: parameters and buffers of ``model_list``, and those of the policy itself.

        Returns:
            Module name -> tensor name -> the live tensor; names are free of the prefixes of wrappers.
        """
        tensors: NamedTensors = {}
        for name, module in self._models():
            state = module.state_dict(keep_vars=True)
            tensors[name] = {strip_wrappers(key): value for key, value in state.items()}
        return tensors

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Copy the values of ``get_trainable_parameters`` of another policy into this one.

        Raises:
            WeightSyncError: If names, shapes or dtypes differ; nothing is changed then.
        """
        own = flatten_names(self.get_trainable_parameters())
        given = flatten_names(state_dict)
        check_same_layout(own, given, f"{type(self).__name__} ({self.role_type})", kwargs.get("version", self.version))
        self._take_own_memory()
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(given[name])

    def extra_training_state(self) -> dict[str, Any]:
        """Give what else a resumed run needs besides modules, optimizers, counters and the generator."""
        return {}

    def load_extra_training_state(self, state: dict[str, Any]) -> None:
        """Take back what ``extra_training_state`` gave."""

    def envs_changed(self) -> None:
        """Drop what refers to the envs whose data came so far: from now on they come from others."""

    # Life

    def set_seed(self, seed: int, index: int = 0) -> None:
        """Let all randomness of this policy follow from a seed; call it before ``init_train`` or ``init_eval``.

        Args:
            seed: Seed of the run: networks of all policies start equal.
            index: Index of this policy in its role: their sampling differs.
        """
        self._seed, self._seed_index = seed, index
        role = 0 if self.role_type is PolicyRole.TRAIN else 1
        train, evaluation = np.random.SeedSequence([seed, 77, role, index]).generate_state(2, np.uint64)
        self.generator.manual_seed(int(train))
        self._evaluation_generator.manual_seed(int(evaluation))
        # That of index 0, so that one learner draws what it would draw from its own.
        shared = np.random.SeedSequence([seed, 77, role, 0]).generate_state(1, np.uint64)[0]
        self.shared_generator.manual_seed(int(shared))

    @property
    def generator(self) -> torch.Generator:
        """Source of all randomness of this policy; in evaluation another one takes its place."""
        return self._evaluation_generator if _EVALUATES.get() else self._generator

    def seed_evaluation(self, seed: int) -> None:
        """Let the sampling of the next evaluation follow from a seed."""
        self._evaluation_generator.manual_seed(seed)

    def init_train(self, train_config: TrainConfig, env_meta: EnvMeta | None = None) -> None:
        """Build networks and optimizer for learning.

        Train policies of one group do it together: all start from the weights of the first one, and their gradients
        are averaged from then on.
        """
        if self.role_type is not PolicyRole.TRAIN:
            raise ProtocolError(f"init_train is for policies of role 'train'; this one is {self.role_type.value!r}")
        self.train_config = train_config
        self.env_meta = env_meta
        with self._collective():
            self.world_size = self.peers.size
            self._build(training=True)
            self._start_equal()
            self._make_data_parallel()
        self.setup_optimizer(self.config.optim_cfg)
        self.epoch = self.version = 0
        self.is_init = True

    def init_eval(self, eval_config: Any | None = None, env_meta: EnvMeta | None = None) -> None:
        """Build networks for acting; requests are admitted after the first weights have come."""
        if self.role_type is not PolicyRole.EVAL:
            raise ProtocolError(f"init_eval is for policies of role 'eval'; this one is {self.role_type.value!r}")
        self.env_meta = env_meta
        self._build(training=False)
        self.version = -1
        self._failed_update = None
        if self.rollout_mode == "async" and self._coroutines is None:
            self._coroutines = CoroutineThread(f"{type(self).__name__} rollouts")
        self.is_init = True

    def change_role(self, role_type: PolicyRole) -> None:
        """Take another role, as a policy that has yet to be initialised; all groups are left."""
        self.close_comm_groups()
        self.role_type = PolicyRole(role_type)
        is_learner = self.role_type is PolicyRole.TRAIN
        self.device = pick_device(self.config.train_num_gpus if is_learner else self.config.eval_num_gpus)
        self._generator = torch.Generator(self.device)
        self._evaluation_generator = torch.Generator(self.device)
        self.shared_generator = torch.Generator(self.device)
        self._memory = memory_of(self.device)
        self.dataset, self.is_init = None, False
        for held in dict(self._steppers()).values():
            for name in held:
                delattr(self, name)

    def is_initialized(self) -> bool:
        """Tell whether ``init_train`` or ``init_eval`` is done."""
        return self.is_init

    def reset_training_state(
        self, train_config: TrainConfig, env_meta: EnvMeta | None = None, seed: int | None = None
    ) -> None:
        """Bring networks and optimizer back to their initial state, as after a warm-up.

        The version goes on: the initial weights come anew, and eval policies take nothing that is older than theirs.
        """
        version = self.version
        if seed is not None:
            self.set_seed(seed, self._seed_index)
        self.init_train(train_config, env_meta if env_meta is not None else self.env_meta)
        self.version = version + 1
        self.dataset = None

    def eval(self) -> BasePolicy:
        """Set inference mode. Never trains, although ``train`` is the user's training step."""
        self._set_mode(training=False)
        return self

    # Rollout

    def check_idle(self) -> None:
        """Return when the policy is free; a sync policy works through one call at a time, so that is now."""
        if self.rollout_mode == "async":
            raise AsyncRolloutError("check_idle is for sync rollouts; with async rollouts use get_num_requests")

    def get_num_requests(self) -> int:
        """Count the requests in flight."""
        return self._gate.num_requests

    def _rollout(self, env_ret: EnvRet, evaluation: bool = False, deterministic: bool = False) -> PolicyResponse:
        """Answer one env worker."""
        return self._rollout_batch(env_ret, evaluation=evaluation, deterministic=deterministic)[0]

    def _rollout_batch(
        self, *env_rets: EnvRet, evaluation: bool = False, deterministic: bool = False
    ) -> list[PolicyResponse]:
        """Answer several env workers by one forward pass."""
        options = {"deterministic": True} if deterministic else {}
        if deterministic and not self._takes_deterministic:
            raise ConfigError(
                f"{type(self).__name__}.rollout_step takes no 'deterministic': add the parameter, or set "
                f"evaluation.deterministic=false"
            )
        counts = [ret.num_envs for ret in env_rets]
        with self._gate.request(), self._timer.measure("rollout"), torch.inference_mode():
            self._require_weights()
            request = join_requests(env_rets, self.device)
            context = _EVALUATES.set(True) if evaluation else None
            try:
                response = self._run(self.rollout_step, request, **options)
            finally:
                if context is not None:
                    _EVALUATES.reset(context)
            return split_response(response, counts, self.version)

    def _rollout_async(
        self, env_ret: EnvRet, evaluation: bool = False, deterministic: bool = False, at_least: int = -1
    ) -> PolicyResponse:
        """Answer one env worker; several threads may call this at a time.

        Args:
            env_ret: What it asks.
            evaluation: Sample from the generator of evaluations.
            deterministic: Act with the mode of the policy.
            at_least: Version that was announced to the caller; the request waits until it is in force.
        """
        self._gate.wait_for(lambda: self.version >= at_least or self._failed_update is not None)
        return self._rollout(env_ret, evaluation, deterministic)

    def _keeps_state(self) -> bool:
        return self.is_stateful

    def _run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the user's part of a request; requests that overlap do so on one thread, where it awaits."""
        if self._coroutines is None:
            return function(*args, **kwargs)
        return self._coroutines.run(function, *args, **kwargs)

    def _postprocess(
        self, env_ret: EnvRet | None = None, policy_resp: PolicyResponse | None = None
    ) -> PolicyResponse | None:
        """Run the user's ``postprocess`` on one env worker's data; gives arrays on the host."""
        with self._gate.request(), self._timer.measure("postprocess"), torch.inference_mode():
            self._require_weights()
            if type(self).postprocess is BasePolicy.postprocess:
                return policy_resp
            request = None if env_ret is None else join_requests([env_ret], self.device)
            response = None if policy_resp is None else own_response(policy_resp, self.device)
            result = self._run(self.postprocess, request, response)
            if result is None:
                return None
            rows = len(tree_leaves(result.action)[0])
            return split_response(result, [rows], result.version)[0]

    # Weights

    def weight_layout(self) -> Layout:
        """Say where each tensor that acts lies in the bytes that travel."""
        return self._layout_of(self.get_trainable_parameters())

    def export_bundle(self) -> Bundle:
        """Copy all that acts, with its version."""
        self._require_init("export_bundle")
        with self._timer.measure("export"):
            tensors = self.get_trainable_parameters()
            return pack(tensors, self.version, self._layout_of(tensors))

    def send_weights(self, receivers: Sequence[Any], shared_weight_buffer: Slots | None = None) -> Bundle | int:
        """Give the weights; only on a learner.

        Args:
            receivers: Who gets what is returned; with nobody, the weights just go into the shared buffer.
            shared_weight_buffer: Memory of this node to write them into as well; with nobody to receive, None means the
                one that ``map_weight_buffer`` named, so that no handle has to travel with each push.

        Returns:
            A copy of all that acts, or just its version where nobody receives.

        Raises:
            WeightSyncError: If they do not fit the shared buffer, which stays as it is then.
        """
        self._require_init("send_weights")
        if shared_weight_buffer is None and not receivers:
            shared_weight_buffer = self._mapped
        if shared_weight_buffer is not None:
            tensors = self.get_trainable_parameters()
            self._check_key(shared_weight_buffer.layout.key, own=self._layout_of(tensors))
            with self._timer.measure("export"), shared_weight_buffer.writing(self.version) as places:
                copy_all(places, tensors)
        return self.export_bundle() if receivers else self.version

    def send_weight_parts(self, count: int) -> list[BundlePart]:
        """Give the weights in parts of nearly equal size, one for each of ``count`` receivers."""
        return split(self.export_bundle(), count)

    def import_bundle(self, bundle: Bundle) -> int:
        """Put a bundle in force between two requests.

        Returns:
            Its version.

        Raises:
            WeightSyncError: If it does not fit or is older than the one in force; the old one stays in force, and the
                next request and the next wait raise the error too.
        """
        self._require_init("import_bundle")
        return self._import(bundle.views(), bundle.version)

    def broadcast_weights(self) -> int:
        """Send the weights to all members of the group of this sender; each of them calls ``recv_weights()``.

        Returns:
            Their version.
        """
        self._require_init("broadcast_weights")
        group = self.group(ParallelMode.WEIGHT_TRANSFER)
        try:
            tensors = self.get_trainable_parameters()
            layout = self._layout_of(tensors)
            flat = torch.zeros(layout.num_bytes, dtype=torch.uint8, device=self.device)
            copy_all(layout.views(flat), tensors)
        except BaseException:
            # The receivers wait already: tell them that nothing comes.
            group.broadcast_(torch.tensor([_NOTHING_COMES, 0, 0], device=self.device))
            raise
        with self._timer.measure("export"):
            key = int(layout.key, 16) - 2**63
            group.broadcast_(torch.tensor([self.version, key, layout.num_bytes], device=self.device))
            group.broadcast_(flat)
        return self.version

    def init_weight_buffer(self, shared_weight_buffer: Slots | None = None) -> None:
        """Let new weights go into a buffer first, from which the updater puts them in force.

        Args:
            shared_weight_buffer: Memory that all eval policies of this node act with; None means two slots of this
                policy's own.

        Raises:
            WeightSyncError: If the shared buffer is laid out for another network.
        """
        if self.role_type is not PolicyRole.EVAL:
            raise ProtocolError(f"weight buffers are for policies of role 'eval'; this one is {self.role_type.value!r}")
        self._require_init("init_weight_buffer")
        if shared_weight_buffer is None:
            device = self.device if self.config.weight_buffer.type == "WeightBuffer" else "cpu"
            shared_weight_buffer = Slots(self.weight_layout(), device=device)
        self._check_key(shared_weight_buffer.layout.key)
        with self._gate.update():
            self._take_own_memory()
            self._slots = shared_weight_buffer
        if self._updater is None:
            self._updater = Updater(self._follow_announcement)
            threading.Thread(target=self._updater.run, name="weight updater", daemon=True).start()

    def share_weight_buffer(self, parts: int = 1) -> Slots:
        """Make a buffer that the policies of this node can map; see ``init_weight_buffer``."""
        self._require_init("share_weight_buffer")
        self._made = Slots.create_shared(self.weight_layout(), parts)
        return self._made

    def map_weight_buffer(self, shared_weight_buffer: Slots) -> None:
        """Map a buffer of this node now, to write into it later."""
        self._check_key(shared_weight_buffer.layout.key)
        self._mapped = shared_weight_buffer

    def unlink_weight_buffer(self) -> None:
        """Say that all have mapped the buffer: nothing of it is left behind when they end."""
        if self._made is not None:
            self._made.unlink()

    def recv_weights(self, payload: Bundle | BundlePart | None = None) -> int:
        """Take weights: into the buffer, in force with the next update; without a buffer in force at once.

        Args:
            payload: All of them, or the part that is this policy's to receive; None waits for the sender of this
                policy's group to broadcast them.

        Returns:
            Their version.

        Raises:
            WeightSyncError: If they do not fit; what was in force stays in force.
        """
        if payload is None:
            return self._receive_broadcast()
        if self._slots is None:
            if isinstance(payload, BundlePart):
                raise ProtocolError("parts of weights come together in a buffer: call init_weight_buffer first")
            return self.import_bundle(payload)
        with self._timer.measure("receive"):
            if isinstance(payload, BundlePart):
                self._check_key(payload.key)
                self._slots.write_bytes(payload.version, as_bytes(payload.flat), payload.index)
            else:
                self._check_key(payload.layout.key, payload)
                self._slots.write_bytes(payload.version, as_bytes(payload.flat))
        return payload.version

    def update_weights_from_buffer(self) -> None:
        """Put the newest complete weights of the buffer in force, between two requests.

        The policy acts with the buffer's memory itself: nothing is copied, unless a class has its own way of loading.

        Raises:
            WeightSyncError: If they are older than those in force or cannot be loaded; the next request and the next
                wait raise the error too.
        """
        if self._slots is None:
            raise ProtocolError("there is no weight buffer: call init_weight_buffer first")
        with self._noting_failure():
            slots = self._slots
            tensors, version, stamp = slots.views(), slots.version, slots.stamp
            if self._adopted == (slots, stamp):
                return
            self._check_newer(version)
            # A failure is noted before the gate opens: nobody shall act with what was loaded half.
            with self._timer.measure("import"), self._gate.update(), self._noting_failure():
                if slots is not self._slots:
                    return  # another buffer took its place while requests were in flight
                if self._may_adopt():
                    point_all(self.get_trainable_parameters(), tensors)
                    self._adopted = slots, stamp
                else:
                    self.load_state_dict(tensors, version=version)
                self.version = version

    def update_weights(self) -> None:
        """Follow announcements until the policy is gone; runs in a thread where a weight buffer is in use."""
        if self._updater is None:
            raise ProtocolError("there is no weight buffer: call init_weight_buffer first")
        self._updater.run()

    def forget_version(self) -> None:
        """Take the next bundle whatever its version, as after going back to a checkpoint; until then admit nobody."""
        with self._gate.update():
            self.version = -1

    def notify_update_weights(self) -> None:
        """Announce new weights; without a weight buffer they are in force already."""
        if self._updater is not None:
            self._updater.announce()

    def wait_for_weight_update_done(self, timeout: float | None = None) -> bool:
        """Wait until the latest announced weights are in force.

        Args:
            timeout: Seconds to wait.

        Returns:
            Whether they are; without a weight buffer weights are in force when they are sent.

        Raises:
            WeightSyncError: If the last update failed.
        """
        done = True
        if self._updater is not None:
            done = self._updater.wait(timeout)
        if self._failed_update is not None:
            raise WeightSyncError(f"the last weight update failed: {self._failed_update}") from self._failed_update
        return done

    def get_param_fingerprint(self) -> dict[str, float]:
        """Give the L2 norm of each tensor that acts, by ``module.name``."""
        named = flatten_names(self.get_trainable_parameters())
        return {name: float(torch.linalg.vector_norm(tensor.detach().double())) for name, tensor in named.items()}

    def get_bundle_digest(self) -> tuple[int, dict[str, str]]:
        """Give the version and an exact digest of each tensor that acts: bits, dtype and shape."""
        return self.version, digests(flatten_names(self.get_trainable_parameters()))

    def send_weights_ipc(self) -> Slots:
        """Give a handle of memory that holds the weights, for a policy beside this one."""
        self._require_init("send_weights_ipc")
        layout = self.weight_layout()
        if self._handed_over is None or self._handed_over.layout.key != layout.key:
            self._handed_over = Slots.create_shared(layout)
        self.send_weights((), self._handed_over)
        return self._handed_over

    def end_hand_over(self) -> None:
        """Make new memory for the next handle, because another policy will get it."""
        self._handed_over = None

    def recv_weights_ipc(self, payload: Slots) -> int:
        """Copy the weights out of memory that a policy beside this one gave; they are in force at once.

        Returns:
            Their version.
        """
        self._require_init("recv_weights_ipc")
        self._check_key(payload.layout.key)
        self._handed_over = payload
        try:
            return self._import(payload.views(), payload.version)
        finally:
            payload.unlink()

    # Memory

    def offload_model(self) -> None:
        """Move parameters, buffers and gradients to host memory, between two requests; acting wants them back."""
        self.offload_model_param_and_grad(offload_grad=True)

    def reload_model(self) -> None:
        """Move parameters, buffers and gradients to the device."""
        self.reload_model_param_and_grad(load_grad=True)

    def offload_model_param_and_grad(self, offload_grad: bool) -> None:
        """Move parameters and buffers to host memory.

        Args:
            offload_grad: Move gradients too; they stay otherwise.
        """
        with self._gate.update(), self._timer.measure("offload"):
            if offload_grad:
                self._memory.offload(Part.GRADIENTS, gradients(self._tensors()))
            self._memory.offload(Part.MODEL, self._tensors())

    def reload_model_param_and_grad(self, load_grad: bool) -> None:
        """Move parameters and buffers to the device.

        Args:
            load_grad: Move gradients too. They may stay where they are if the next training step begins with none.
        """
        with self._gate.update(), self._timer.measure("reload"):
            self._memory.reload(Part.MODEL, self._tensors())
            if load_grad:
                self._memory.reload(Part.GRADIENTS, gradients(self._tensors()))

    def offload_optimizer(self) -> None:
        """Move the state of all optimizers to host memory; training wants it back."""
        with self._timer.measure("offload"):
            self._memory.offload(Part.OPTIMIZER, optimizer_tensors(dict(self._steppers())["optimizers"].values()))

    def reload_optimizer(self) -> None:
        """Move the state of all optimizers to the device."""
        with self._timer.measure("reload"):
            self._memory.reload(Part.OPTIMIZER, optimizer_tensors(dict(self._steppers())["optimizers"].values()))

    # Checkpoints

    def get_training_state(self) -> dict[str, Any]:
        """Give all that a resumed run needs of this policy, copied."""
        state = {
            "role": self.role_type.value,
            "epoch": self.epoch,
            "version": self.version,
            "modules": self._all_tensors(),
            **{kind: {name: value.state_dict() for name, value in held.items()} for kind, held in self._steppers()},
            "shared_generator": self.shared_generator.get_state(),
            **self.get_own_state(),
        }
        cloned: dict[str, Any] = clone_checkpoint_value(state)
        return cloned

    def get_own_state(self) -> dict[str, Any]:
        """Give the part of the training state that no other policy of this role shares, copied."""
        state = {
            "generator": self.generator.get_state(),
            "evaluation_generator": self._evaluation_generator.get_state(),
            "global_generators": _global_generators(),
            "extra": self.extra_training_state(),
        }
        cloned: dict[str, Any] = clone_checkpoint_value(state)
        return cloned

    def load_training_state(self, state: Mapping[str, Any], *, act_only: bool = False) -> None:
        """Take back what ``get_training_state`` gave.

        Args:
            state: The state.
            act_only: Load just modules and version, from the state of a policy of any role.

        Raises:
            CheckpointError: If the state belongs to another network or another role; nothing is changed then.
        """
        own = self._all_tensors()
        try:
            if not act_only:
                self._check_fits(state)
            check_same_layout(own, state["modules"], type(self).__name__, state["version"])
            self._take_own_memory()
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(state["modules"][name])
            self.version = state["version"]
            if act_only:
                return
            self.epoch = state["epoch"]
            for kind, held in self._steppers():
                for name, value in held.items():
                    # Torch keeps the given tensors, and updates them in place: several policies may be given the same.
                    value.load_state_dict(clone_checkpoint_value(state[kind][name]))
            self.load_generators(state)
            self.shared_generator.set_state(state["shared_generator"])
            _set_global_generators(state["global_generators"])
            self.load_extra_training_state(state["extra"])
        except (WeightSyncError, KeyError, AttributeError, ValueError) as error:
            raise CheckpointError(f"the state does not fit {type(self).__name__}: {error}") from error

    def _check_fits(self, state: Mapping[str, Any]) -> None:
        if state["role"] != self.role_type.value:
            raise CheckpointError(f"the state is of a policy of role {state['role']!r}, this one is {self.role_type}")
        for kind, held in self._steppers():
            if state[kind].keys() != held.keys():
                raise CheckpointError(f"the state has the {kind} {sorted(state[kind])}, the policy {sorted(held)}")

    def _steppers(self) -> list[tuple[str, dict[str, Any]]]:
        """Find the optimizers and learning rate schedulers among the attributes."""
        kinds = {"optimizers": torch.optim.Optimizer, "schedulers": torch.optim.lr_scheduler.LRScheduler}
        return [
            (name, {key: value for key, value in vars(self).items() if isinstance(value, kind)})
            for name, kind in kinds.items()
        ]

    def load_generators(self, state: Mapping[str, Any]) -> None:
        """Let sampling go on where a training state was taken."""
        self.generator.set_state(state["generator"])
        self._evaluation_generator.set_state(state["evaluation_generator"])

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the training state into a folder; see ``rlightning.checkpoint``."""
        save_state(path, {"policy": self.get_training_state()})

    def load_checkpoint(self, path: str | Path) -> None:
        """Read what ``save_checkpoint`` wrote.

        Raises:
            CheckpointError: If a file is damaged or of another kind, or does not fit.
        """
        self.load_training_state(load_state(path, ["policy"])["policy"])

    # Timing

    @property
    def timing_raw(self) -> dict[str, dict[str, float]]:
        """Seconds by what was done: count, total and average."""
        return self._timer.summary()

    def print_timing_summary(self, reset: bool = False) -> None:
        """Print a table of ``timing_raw``.

        Args:
            reset: Start counting anew.
        """
        print(self._timer.table(f"{type(self).__name__} ({self.role_type.value})"))  # noqa: T201 (it says print)
        self.take_timing(reset)

    def take_timing(self, reset: bool = False) -> dict[str, dict[str, float]]:
        """Give ``timing_raw``; ``reset`` starts counting anew."""
        timing = self.timing_raw
        if reset:
            self._timer.reset()
        return timing

    def record_spans(self) -> None:
        """Write down, from now on, when what was done; counting starts anew."""
        self._timer.record_spans()

    def take_spans(self) -> list[Span]:
        """Give what was written down since the last call."""
        return self._timer.take_spans()

    # Called by the group

    def _update_dataset(self, data: TensorDictBase) -> int:
        """Take data; returns how many versions the oldest weights that acted in them are behind."""
        self._require_init("update_dataset")
        self._memory.require(Part.MODEL, to="take data")
        with self._collective(), self._timer.measure("update_dataset"):
            lag = self._lag(data)
            self.update_dataset(data if self.device == "cpu" else data.to(self.device))
        return lag

    def _lag(self, data: TensorDictBase) -> int:
        """Count the versions that the oldest known weights that acted are behind; 0 where none are known."""
        if "version" not in data.keys():  # noqa: SIM118 (a TensorDict is no dict)
            return 0
        known = data["version"][data["version"] >= 0]
        return self.version - int(known.min()) if known.numel() else 0

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        """Run the user's training step and count it."""
        self._require_init("train")
        self._memory.require(Part.MODEL, Part.OPTIMIZER, to="train")
        with self._collective(), self._timer.measure("train"):
            metrics = self.train(*args, **kwargs)
        self.epoch += 1
        self.version += 1
        interval = self.train_config.check_ranks_interval
        if interval and self.epoch % interval == 0:
            self.check_ranks()
        return metrics

    # Data parallel: what train policies do together

    @property
    def peers(self) -> Group:
        """The train policies that learn with this one; a group of one where it learns alone."""
        return self.group(ParallelMode.TRAIN_DATA_PARALLEL)

    def group(self, mode: ParallelMode) -> Group:
        """Give the group of a kind that this policy is in, the first one of several; a group of one without any."""
        return self._communicator.group(mode)

    def groups(self, mode: ParallelMode) -> list[Group]:
        """List the groups of a kind that this policy is in."""
        return self._communicator.groups(mode)

    def get_rank(self) -> int:
        """Give the rank of this policy among all policies; 0 without groups."""
        return self._communicator.rank

    def dist_barrier(self, mode: ParallelMode | None = None) -> None:
        """Wait until all members of a group have called this.

        Args:
            mode: Which group; None means that of all policies.
        """
        self.group(ParallelMode.GLOBAL if mode is None else mode).barrier()

    def average_backward(self, loss: torch.Tensor | None, samples: float) -> None:
        """Run a backward pass; the gradients become those of the mean over the samples of all train policies.

        A plain ``loss.backward()`` averages as well, but lets all train policies count the same.

        Args:
            loss: A mean over samples; None where this policy has none in this step, since the others wait for it.
            samples: How many they are.
        """
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
            total = self.peers.all_reduce_(torch.tensor([float(samples)], dtype=torch.float64, device=self.device))
            loss = loss * (samples * self.peers.size / total.item())
        torch.autograd.backward(loss)

    def check_ranks(self) -> None:
        """Compare all that acts, bit for bit, with what the other train policies have.

        Raises:
            WeightSyncError: Names the ranks and the tensors that differ.
        """
        own = digests(self._all_tensors())
        row = torch.tensor([list(bytes.fromhex(digest)) for digest in own.values()], dtype=torch.uint8)
        rows = self.peers.all_gather(row.to(self.device))
        for rank, other in enumerate(rows):
            if not torch.equal(other, rows[0]):
                differ = [name for name, same in zip(own, (other == rows[0]).all(1).tolist(), strict=True) if not same]
                raise WeightSyncError(
                    f"after epoch {self.epoch} train policy {rank} differs from train policy 0 in {len(differ)} of "
                    f"{len(own)} tensors: {', '.join(differ[:10])}"
                )

    def _start_equal(self) -> None:
        """Take the parameters and buffers of the first train policy."""
        peers = self.peers
        if peers.size == 1:
            return
        tensors = self._all_tensors()
        layout = repr([(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()])
        digest = torch.tensor(list(hashlib.blake2b(layout.encode(), digest_size=16).digest()), dtype=torch.uint8)
        layouts = peers.all_gather(digest.to(self.device))
        strange = [rank for rank, other in enumerate(layouts) if not torch.equal(other, layouts[0])]
        if strange:
            raise WeightSyncError(
                f"the networks of the train policies {strange} have other names, shapes or dtypes than those of train "
                f"policy 0: construct_network must build the same on all of them"
            )
        with torch.no_grad():
            flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
            sent = torch.split(peers.broadcast_(torch.cat(flat)), [len(piece) for piece in flat])
            for tensor, piece in zip(tensors.values(), sent, strict=True):
                tensor.copy_(piece.clone().view(tensor.dtype).view(tensor.shape))

    def _make_data_parallel(self) -> None:
        """Average gradients, by the author's ``wrap_with_ddp`` where there is one."""
        if self._average is not None:
            self._average.close()
            self._average = None
        wrap = getattr(self, "wrap_with_ddp", None)
        if wrap is not None and (self.peers.size > 1 or self.train_config.parallel == "ddp"):
            if self.peers.size > 1 and not torch.distributed.is_initialized():
                raise ConfigError(
                    f"{type(self).__name__}.wrap_with_ddp wants torch's default group, which has a place only where "
                    f"every train policy is a process of its own: set cluster.remote_train=true, or leave the method "
                    f"out, and the framework averages the gradients"
                )
            wrap()
        elif self.peers.size > 1:
            self._average = GradientAverage(self.parameters(), self.peers)

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Leave the other train policies at once where something fails, so that they do not wait for this one."""
        try:
            yield
        except BaseException as error:
            self.peers.close(f"{type(error).__name__}: {error}")
            raise

    # Groups: called by PolicyGroup.init_comm_group

    def _get_node_id(self) -> str:
        """Give the id of this policy's node; "local" where it is an object of the controller."""
        return own_place()[0]

    def _get_gpu_ids(self) -> list[int]:
        """Give the GPUs that this policy may use, in the numbering of its node; none on the CPU."""
        return [] if self.device == "cpu" else list(own_place()[1])

    def _get_addr_and_port(self) -> tuple[str, int]:
        """Listen where all others can meet this policy; its rank becomes 0."""
        return self._communicator.offer()

    def init_distributed_env(
        self,
        rank: int,
        world_size: int,
        local_rank: int,
        local_world_size: int,
        master_addr: str,
        master_port: int,
        backend: str = "gloo",
        generation: int = 0,
        timeout_s: float = 300.0,
    ) -> None:
        """Meet all other policies; groups of an earlier generation are left.

        Args:
            rank: Of this policy.
            world_size: Number of policies.
            local_rank: Of this policy on its node.
            local_world_size: Number of policies on its node.
            master_addr: Where rank 0 listens: what its ``_get_addr_and_port`` gave.
            master_port: Likewise.
            backend: "gloo" or "nccl".
            generation: Number of this formation of groups.
            timeout_s: Seconds that each call waits for the others.
        """
        self.local_rank, self.local_world_size = local_rank, local_world_size
        self._communicator.enter(
            rank,
            world_size,
            master_addr,
            master_port,
            backend,
            generation=generation,
            timeout_s=timeout_s,
            device=self.device,
        )

    def init_single_comm_group(
        self, ranks: Sequence[int], mode: ParallelMode, backend: str = "gloo", as_default: bool = False
    ) -> None:
        """Form a group; nothing to do where this policy is not among the ranks.

        Args:
            ranks: Of its members; the order is that of the ranks within the group.
            mode: What it is for.
            backend: "gloo" or "nccl".
            as_default: Make it torch's default group as well; only where this is the only policy of its process.
        """
        mode = ParallelMode(mode)
        self._communicator.form(ranks, mode, backend, as_default=as_default)
        if mode is ParallelMode.TRAIN_DATA_PARALLEL and self.is_init and self.role_type is PolicyRole.TRAIN:
            self.world_size = self.peers.size
            self._make_data_parallel()

    def close_comm_groups(self) -> None:
        """Leave all groups."""
        self._communicator.close()

    # Inside

    def _models(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self.model_list
        if self._parameters or self._buffers:
            yield "self", _OwnTensors(self)

    def _all_tensors(self) -> dict[str, torch.Tensor]:
        """List all parameters and buffers, also those outside of ``model_list``; names as ``get_trainable_parameters``.

        ``nn.Module.state_dict`` of the policy itself would not do: Ray wraps an actor's methods, which torch takes for
        overridden ones.
        """
        modules = [*self.named_children(), ("self", _OwnTensors(self))]
        states = {name: module.state_dict(keep_vars=True) for name, module in modules}
        return {strip_wrappers(name): tensor for name, tensor in flatten_names(states).items()}

    def _tensors(self) -> list[torch.Tensor]:
        """List all parameters and buffers, persistent or not, each once."""
        modules = [self, *(module for _, module in self.model_list)]
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        return list({id(tensor): tensor for tensor in tensors}.values())

    def _build(self, *, training: bool) -> None:
        for name in [name for name, _ in self.named_children()]:
            delattr(self, name)
        self._memory.forget()
        self.model_list = []
        self._layout, self._slots, self._adopted = None, None, None
        # Networks are drawn from the global generator: lend it our seed and give it back as it was.
        with _BUILDING, torch.random.fork_rng(devices=[]):
            if self._seed is not None:
                torch.manual_seed(self._seed)
            self.construct_network(self.env_meta)
        self.to(self.device)
        if not self.model_list:
            self.model_list = [(name, child) for name, child in self.named_children() if child.state_dict()]
        self._set_mode(training=training)

    def _set_mode(self, *, training: bool) -> None:
        self.training = training
        for child in self.children():
            child.train(training)

    def _receive_broadcast(self) -> int:
        group = self.group(ParallelMode.WEIGHT_TRANSFER)
        if group.size < 2:
            raise ProtocolError("there is no sender to receive from: call PolicyGroup.init_comm_group first")
        with self._timer.measure("receive"):
            version, key, num_bytes = group.broadcast_(torch.zeros(3, dtype=torch.int64, device=self.device)).tolist()
            if version == _NOTHING_COMES:
                raise WeightSyncError("the sender failed before it sent anything")
            layout = self.weight_layout()
            fits = key == int(layout.key, 16) - 2**63
            if fits and self._slots is not None and self._slots.device == torch.device(self.device):
                with self._slots.filling(version) as place:
                    group.broadcast_(place)
                return int(version)
            # What does not fit is received all the same, so that the others get theirs.
            flat = group.broadcast_(torch.zeros(num_bytes, dtype=torch.uint8, device=self.device))
        if not fits:
            self._check_key("")
        if self._slots is None:
            return self._import(layout.views(flat), version)
        self._slots.write_bytes(version, flat)
        return int(version)

    def _import(self, tensors: NamedTensors, version: int) -> int:
        """Copy weights in, between two requests; they are in force at once."""
        with self._noting_failure():
            self._check_newer(version)
            # A failure is noted before the gate opens: nobody shall act with what was loaded half.
            with self._timer.measure("import"), self._gate.update(), self._noting_failure():
                self.load_state_dict(tensors, version=version)
                self.version = version
        return version

    def _follow_announcement(self) -> None:
        # Whoever waits, and the next request, is told of a failure; the updater goes on.
        with suppress(Exception), self._noting_failure():
            self.update_weights_from_buffer()

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        """Admit no request after an update that failed, until one has succeeded."""
        try:
            yield
        except BaseException as error:
            self._failed_update = error
            self._gate.changed()
            raise
        self._failed_update = None

    def _check_newer(self, version: int) -> None:
        if version < self.version:
            raise WeightSyncError(f"weights of version {version} came after those of version {self.version}")

    def _layout_of(self, tensors: NamedTensors) -> Layout:
        if self._layout is None or not self._layout.fits(tensors):
            self._layout = Layout.of(tensors)
        return self._layout

    def _check_key(self, key: str, bundle: Bundle | None = None, own: Layout | None = None) -> None:
        """Compare the layout of what comes with that of this network."""
        if key != (own or self.weight_layout()).key:
            if bundle is not None:
                named = flatten_names(self.get_trainable_parameters())
                check_same_layout(named, flatten_names(bundle.views()), type(self).__name__, bundle.version)
            raise WeightSyncError(
                f"the weights are laid out for another network than that of {type(self).__name__} "
                f"({self.role_type.value}): do both sides have the same configuration, and tie the same weights?"
            )

    def _may_adopt(self) -> bool:
        """Tell whether tensors can be exchanged by pointer: nobody loads in a way of their own, all on one device."""
        plain = all(
            inspect.unwrap(getattr(type(self), name)) is getattr(BasePolicy, name)
            for name in ("load_state_dict", "get_trainable_parameters")
        )
        is_there = Part.MODEL not in self._memory.offloaded
        return (
            plain and is_there and self._slots is not None and self._slots.device.type == torch.device(self.device).type
        )

    def _take_own_memory(self) -> None:
        """Copy the tensors out of a buffer that others may act with, before anything is written into them."""
        if self._adopted is not None:
            for _, _, tensor in each(self.get_trainable_parameters()):
                tensor.data = tensor.data.clone()
            self._adopted = None

    def _require_init(self, method: str) -> None:
        if not self.is_init:
            raise ProtocolError(f"call init_{self.role_type.value} before {method}")

    def _require_weights(self) -> None:
        if self.version < 0:
            self._require_init("rollout")
            raise ProtocolError("no weights have come yet: call PolicyGroup.sync_weights before the first rollout")
        if self._failed_update is not None:
            self.wait_for_weight_update_done()
        if self._memory.offloaded:
            self._memory.require(Part.MODEL, to="act")


class AsyncRolloutError(ProtocolError, AssertionError):
    """A call that is only for sync rollouts."""


class _OwnTensors(nn.Module):
    """The parameters and buffers that a policy holds itself, outside of its sub-modules."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self._parameters = policy._parameters
        self._buffers = policy._buffers
        self._non_persistent_buffers_set = policy._non_persistent_buffers_set


def _global_generators() -> dict[str, Any]:
    """Give the state of the generators that code without one of its own draws from."""
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}  # noqa: NPY002


def _set_global_generators(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"])


def _accepts(function: Any, parameter: str) -> bool:
    parameters = inspect.signature(function).parameters
    return parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
