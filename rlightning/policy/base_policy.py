"""One class that holds networks, optimizer, rollout and training step, in one of two roles."""

from __future__ import annotations

import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import nn

from rlightning.checkpoint import load_state, save_state
from rlightning.config import OptimConfig, PolicyConfig, Section, TrainConfig
from rlightning.distributed import Communicator, Group, ParallelMode
from rlightning.errors import ConfigError, ProtocolError
from rlightning.observability.timer import Timer
from rlightning.policy import hooks
from rlightning.policy.answering import EVALUATES, Answering
from rlightning.policy.author_checks import check_class, framework_attributes, is_inherited, require_registered
from rlightning.policy.compilation import compile_at_first_call
from rlightning.policy.coroutines import hide_coroutines, is_coroutine
from rlightning.policy.data_parallel import DataParallel, infer_train_dp_world_size, set_nested_attr
from rlightning.policy.generators import Generators
from rlightning.policy.hooks import AsyncRolloutError
from rlightning.policy.learning import Learning
from rlightning.policy.memory import memory_of
from rlightning.policy.networks import build_networks, device_of, set_mode
from rlightning.policy.optimizers import Built, built_options
from rlightning.policy.tensors import PolicyTensors, as_tensors
from rlightning.policy.training_state import clone_checkpoint_value, load_whole_state, whole_state
from rlightning.types import EnvMeta, EnvRet, PolicyResponse
from rlightning.weights.gate import RolloutGate
from rlightning.weights.layout import NamedTensors, flatten_names
from rlightning.weights.port import WeightPort
from rlightning.weights.topology import KEPT_ON_DEVICE

if TYPE_CHECKING:
    # A worker that holds no storage starts in two thirds of the time without this import.
    from tensordict import TensorDictBase

P = ParamSpec("P")
R = TypeVar("R")

__all__ = [
    "AsyncRolloutError",
    "BasePolicy",
    "PolicyRole",
    "clone_checkpoint_value",
    "infer_train_dp_world_size",
    "set_nested_attr",
]


class PolicyRole(StrEnum):
    """What a policy does in a run."""

    TRAIN = "train"
    """It learns."""
    EVAL = "eval"
    """It acts in rollouts."""


class BasePolicy(nn.Module, ABC):
    """The base class of all algorithms.

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
        check_class(cls, BasePolicy)

    def __init__(self, config: PolicyConfig, role_type: PolicyRole) -> None:
        super().__init__()
        self.config = config
        self.role_type = PolicyRole(role_type)
        self.device = device_of(config, self.role_type)
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
        self.local_rank, self.local_world_size = 0, 1
        self._generators = Generators(self.device)
        self._communicator = Communicator()
        self._data_parallel = DataParallel(self._communicator)
        self._learning = Learning(self._data_parallel)
        self._built_options: Built = {}
        self._timer = Timer()
        self._gate = RolloutGate(functools.partial(self._timer.measure, "wait"))
        self._steady = threading.RLock()  # weights may be sent by another thread, and never in the midst of learning
        self._memory = memory_of(self.device)
        lists_plainly = is_inherited(type(self), BasePolicy.get_trainable_parameters)
        loads_plainly = lists_plainly and is_inherited(type(self), BasePolicy.load_state_dict)
        self._tensors = PolicyTensors(self, lists_plainly=lists_plainly, loads_plainly=loads_plainly)
        self._weight_port = WeightPort(
            self._tensors,
            self._gate,
            self._timer,
            self._steady,
            functools.partial(self._communicator.group, ParallelMode.WEIGHT_TRANSFER),
            bucket_bytes=int(1e6 * config.weight_buffer.bucket_mb),
            buffers_on_device=KEPT_ON_DEVICE[config.weight_buffer.type],
        )
        postprocesses = not is_inherited(type(self), BasePolicy.postprocess)
        self._answering = Answering(type(self), self._gate, self._timer, postprocesses=postprocesses)
        if not config.is_async and is_coroutine(type(self).rollout_step):
            raise ConfigError(f"{type(self).__name__}.rollout_step is a coroutine: set policy.rollout_mode=async")
        self._attributes = framework_attributes(self, BasePolicy)  # as an author must leave them
        self._frame = frozenset(vars(self))

    # What an author writes

    @abstractmethod
    def construct_network(self, env_meta: EnvMeta | None, *args: Any, **kwargs: Any) -> None:
        """Build the networks as attributes of this policy.

        Args:
            env_meta: Spaces of one sub-env; None where the caller passed none.
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

        With ``policy.rollout_mode: async`` it may be a coroutine, and requests overlap where it awaits. Threads that it
        starts must enter ``torch.inference_mode`` themselves. A plain method answers one request after the other.

        Args:
            env_ret: N rows, possibly of several env workers, as tensors on ``self.device``.
            **kwargs: ``deterministic=True`` asks for the mode of the policy; passed in evaluation only.

        Returns:
            Tensors with N rows.
        """

    @abstractmethod
    def update_dataset(self, data: TensorDictBase) -> None:
        """Receive data from the buffer; usually sets ``self.dataset``."""

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

        Returns:
            The finished answer, or whatever else the caller of ``PolicyGroup.postprocess`` expects.
        """
        return policy_resp

    def get_trainable_parameters(self) -> NamedTensors:
        """Return all that acts: parameters and buffers of ``model_list``, and those of the policy itself.

        Yours may leave out what the eval policies do without, and list tensors and numpy arrays that no module holds.
        The buffers of a module whose parameters are all listed, under its name in ``model_list``, travel with them.

        Returns:
            Module name -> tensor name -> the live tensor or array; names are free of the prefixes of wrappers.
        """
        return {name: dict(named) for name, named in self._tensors.of_models().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Copy the values of ``get_trainable_parameters`` of another policy into this one.

        Raises:
            WeightSyncError: If names, shapes or dtypes differ; nothing is changed then.
            ProtocolError: If ``get_trainable_parameters`` returns copies, which do not act.
        """
        own, given = flatten_names(as_tensors(self.get_trainable_parameters())), flatten_names(as_tensors(state_dict))
        if not self._tensors.lists_plainly:
            self._tensors.require_live(own)
        self._weight_port.copy_in(own, given, self._tensors.name)

    def extra_training_state(self) -> dict[str, Any]:
        """Return what else a resumed run needs besides modules, optimizers, counters and the generator."""
        return {}

    def load_extra_training_state(self, state: dict[str, Any]) -> None:
        """Restore what ``extra_training_state`` returned."""

    def envs_changed(self) -> None:
        """Drop what refers to the envs whose data came so far: from now on, data come from other envs."""

    # What an author calls

    @property
    def generator(self) -> torch.Generator:
        """Source of all randomness of this policy; in evaluation another one takes its place."""
        return self._generators.evaluation if EVALUATES.get() else self._generators.own

    @property
    def shared_generator(self) -> torch.Generator:
        """Draws alike on all train policies; for ``train`` and ``update_dataset`` only, equally often on each."""
        return self._generators.shared

    def compiled(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function that torch compiles where ``policy.compile`` is set; else the function itself.

        Call it once, in ``setup_optimizer`` or ``construct_network``, for what is called many times with arguments of a
        few shapes; pass a function and not a bound method, which would keep this policy alive. The first call, which
        compiles, is logged and timed as ``compile``. On a GPU the calls are replayed as graphs of kernels.
        """
        return compile_at_first_call(function, self.device, self._timer) if self.config.compile else function

    @property
    def peers(self) -> Group:
        """The train policies that learn with this one; a group of one where it learns alone."""
        return self._data_parallel.peers

    def average_backward(self, loss: torch.Tensor | None, samples: float) -> None:
        """Run a backward pass; the gradients become those of the mean over the samples of all train policies.

        A plain ``loss.backward()`` averages as well, but lets all train policies count the same.

        Args:
            loss: A mean over samples; None where this policy has none in this step, since the others wait for it.
            samples: How many they are.
        """
        self._data_parallel.backward(loss, samples)

    # Life

    def set_seed(self, seed: int, index: int = 0) -> None:
        """Seed all randomness of this policy; call it before ``init_train`` or ``init_eval``.

        Args:
            seed: Seed of the run: networks of all policies start equal.
            index: Index of this policy in its role: their sampling differs.
        """
        self._generators.set_seed(seed, index, role=0 if self.role_type is PolicyRole.TRAIN else 1)

    def init_train(self, train_config: TrainConfig, env_meta: EnvMeta | None = None) -> None:
        """Build networks and optimizer for learning.

        Train policies of one group do it together: all start from the weights of the first one, and their gradients
        are averaged from then on.
        """
        if self.role_type is not PolicyRole.TRAIN:
            raise ProtocolError(f"init_train is for policies of role 'train'; this one is {self.role_type.value!r}")
        self.train_config = train_config
        self.env_meta = env_meta
        with self._data_parallel.leaving_on_failure():
            self.world_size = self.peers.size
            build_networks(self, BasePolicy, training=True)
            self._data_parallel.start(self)
            self.setup_optimizer(self.config.optim_cfg)
            self._built_options = built_options(self)
            require_registered(self)
            self._data_parallel.start_equal(self)  # what came with the optimizer, too
        self.epoch = self.version = 0
        self.is_init = True

    def init_eval(self, eval_config: Any | None = None, env_meta: EnvMeta | None = None) -> None:
        """Build networks for acting; requests are admitted after the first weights have come."""
        if self.role_type is not PolicyRole.EVAL:
            raise ProtocolError(f"init_eval is for policies of role 'eval'; this one is {self.role_type.value!r}")
        self.env_meta = env_meta
        self.version = -1
        build_networks(self, BasePolicy, training=False)
        require_registered(self)
        self._weight_port.failure = None
        if self.config.is_async:
            self._answering.start_coroutines(f"{type(self).__name__} rollouts")
        self.is_init = True

    def is_initialized(self) -> bool:
        """Whether ``init_train`` or ``init_eval`` is done."""
        return self.is_init

    def reset_training_state(
        self, train_config: TrainConfig, env_meta: EnvMeta | None = None, seed: int | None = None
    ) -> None:
        """Bring networks and optimizer back to their initial state, as after a warm-up.

        The version goes on: the initial weights come anew, and eval policies take nothing that is older than theirs.
        """
        version = self.version
        if seed is not None:
            self.set_seed(seed, self._generators.index)
        self.init_train(train_config, env_meta if env_meta is not None else self.env_meta)
        self.version = version + 1
        self.dataset = None

    def eval(self) -> BasePolicy:
        """Set inference mode. Never trains, although ``train`` is the user's training step."""
        set_mode(self, training=False)
        return self

    # Checkpoints

    def get_training_state(self) -> dict[str, Any]:
        """Return a copy of all that a resumed run needs of this policy."""
        return whole_state(self)

    def load_training_state(self, state: Mapping[str, Any], *, act_only: bool = False) -> None:
        """Restore what ``get_training_state`` returned; with ``act_only`` modules and version alone, of any role.

        Raises:
            CheckpointError: If the state belongs to another network or another role; nothing is changed then.
        """
        load_whole_state(self, state, act_only=act_only)

    def save_checkpoint(self, path: str | Path) -> None:
        """Write the training state into a folder; see ``rlightning.checkpoint``."""
        self._tensors.require_init("save_checkpoint")
        save_state(path, {"policy": self.get_training_state()})

    def load_checkpoint(self, path: str | Path) -> None:
        """Read what ``save_checkpoint`` wrote, or the learner's part of a checkpoint of a run.

        An eval policy takes from a learner's checkpoint what acts, and the version.

        Raises:
            CheckpointError: If a file is damaged, or the state does not fit; nothing is changed then.
        """
        self._tensors.require_init("load_checkpoint")
        state = load_state(path, ["policy"])["policy"]
        state = state.get("train", state)  # that of a run is the state of a whole group
        self.load_training_state(state, act_only=state.get("role") == "train" != self.role_type)

    # Timing

    @property
    def timing_raw(self) -> dict[str, dict[str, float]]:
        """Seconds by what was done: count, total and average."""
        return self._timer.summary()

    def print_timing_summary(self, reset: bool = False) -> None:
        """Print a table of ``timing_raw``; ``reset`` starts counting anew."""
        print(self._timer.table(self._tensors.name))  # noqa: T201 (it says print)
        if reset:
            self._timer.reset()

    # Requests and training

    def _rollout(self, env_ret: EnvRet, **options: Any) -> PolicyResponse:
        """Answer one env worker; see ``_rollout_batch``."""
        return self._rollout_batch(env_ret, **options)[0]

    def _rollout_async(self, env_ret: EnvRet, **options: Any) -> PolicyResponse:
        """Answer one env worker; several threads may call this at a time."""
        return self._rollout(env_ret, **options)

    def _rollout_batch(
        self,
        *env_rets: EnvRet,
        evaluation: bool = False,
        deterministic: bool = False,
        at_least: int = -1,
        env_ids: Sequence[Any] = (),
    ) -> list[PolicyResponse]:
        """Answer several env workers by one forward pass, once version ``at_least`` of the weights is in force."""
        if self.version < at_least:
            self._weight_port.wait_for_version(at_least)
        return self._answering.answer(self, env_rets, evaluation, deterministic, env_ids)

    def _postprocess(self, env_ret: EnvRet | None = None, policy_resp: PolicyResponse | None = None) -> Any:
        """Run the author's ``postprocess`` on one env worker's data; returns arrays on the host."""
        return self._answering.finish(self, env_ret, policy_resp)

    def _update_dataset(self, data: TensorDictBase) -> int:
        """Pass data to the author; returns how many versions the oldest weights that acted in them are behind."""
        self._tensors.require_init("update_dataset")
        return self._learning.update_dataset(self, data)

    def _train(self, *args: Any, **kwargs: Any) -> Any:
        """Run the training step of the author and count it."""
        self._tensors.require_init("train")
        return self._learning.train(self, *args, **kwargs)

    # Hooks of the contract, which a group calls on each of its policies; rlightning.policy.hooks describes them

    check_idle = hooks.check_idle
    get_num_requests = hooks.get_num_requests
    export_bundle = hooks.export_bundle
    import_bundle = hooks.import_bundle
    send_weights = hooks.send_weights
    recv_weights = hooks.recv_weights
    send_weights_ipc = hooks.send_weights_ipc
    recv_weights_ipc = hooks.recv_weights_ipc
    init_weight_buffer = hooks.init_weight_buffer
    update_weights_from_buffer = hooks.update_weights_from_buffer
    update_weights = hooks.update_weights
    notify_update_weights = hooks.notify_update_weights
    wait_for_weight_update_done = hooks.wait_for_weight_update_done
    get_param_fingerprint = hooks.get_param_fingerprint
    get_bundle_digest = hooks.get_bundle_digest
    offload_model = hooks.offload_model
    reload_model = hooks.reload_model
    offload_model_param_and_grad = hooks.offload_model_param_and_grad
    reload_model_param_and_grad = hooks.reload_model_param_and_grad
    offload_optimizer = hooks.offload_optimizer
    reload_optimizer = hooks.reload_optimizer
    _get_node_id = hooks._get_node_id
    _get_gpu_ids = hooks._get_gpu_ids
    _get_addr_and_port = hooks._get_addr_and_port
    init_distributed_env = hooks.init_distributed_env
    init_single_comm_group = hooks.init_single_comm_group
    get_rank = hooks.get_rank
    dist_barrier = hooks.dist_barrier
