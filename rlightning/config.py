"""Every option, strict and frozen, with its default, its meaning and its unit beside it.

A configuration is read once, validated as a whole, and never changed afterwards. Unknown names are errors. The
sections ``env_kwargs``, ``model_cfg`` and ``algo_cfg`` belong to the env and to the algorithm: an algorithm that
declares classes for its own two has them validated just as strictly.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

FreeForm = dict[str, Any]
_Decay = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(ge=0)]
_SEEDS = 2**64
"""Torch's generators take no larger seeds."""


class Section(BaseModel):
    """A part of the configuration: unknown names are refused, values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _lists_serve_as_tuples(cls, value: Any, info: ValidationInfo) -> Any:
        # YAML and JSON know no tuples.
        is_tuple = get_origin(cls.model_fields[str(info.field_name)].annotation) is tuple
        return tuple(value) if is_tuple and isinstance(value, list) else value


class FiniteSection(Section):
    """A section of the framework: its numbers are finite, since null says that there is no limit."""

    model_config = ConfigDict(allow_inf_nan=False)


class WrapperConfig(FiniteSection):
    """A wrapper of Gymnasium around each sub-env."""

    name: str
    """Name of a class of ``gymnasium.wrappers``, such as "FrameStackObservation", or ``module:Class`` for a subclass of
    ``gymnasium.Wrapper`` of your own."""
    arguments: FreeForm = Field(default_factory=dict)
    """Its arguments besides the env."""


class CallbackConfig(FiniteSection):
    """What is called at the events of a run."""

    name: str
    """Name of a registered callback: "stop_at", "video", or one of your own."""
    arguments: FreeForm = Field(default_factory=dict)
    """Arguments of its class."""


class TextConfig(FiniteSection):
    """How texts in observations, and in ``info`` of envs of your own, become token ids."""

    tokenizer: str = "bytes"
    """Name of a registered tokenizer; "bytes" gives one id per byte of UTF-8."""
    length: int | None = Field(None, ge=1)
    """Ids per text. A shorter text is filled up by 0, a longer one is an error. null means what the space says (its
    ``max_length``, with "bytes"), and 128 where it says nothing."""


class EnvConfig(FiniteSection):
    """One kind of env, run by a number of workers."""

    name: str
    """Name of the env: a Gymnasium id such as ``HalfCheetah-v5``, or what the backend understands."""
    backend: str = "gymnasium"
    """Name of a registered simulator: "gymnasium", "mujoco" (native batches), or one of your own."""
    task: str = ""
    """Label of the task in metrics of multi-task runs; empty means the name."""
    num_workers: int = Field(1, ge=1)
    """Env workers, each a process of its own where envs are remote."""
    num_envs: int = Field(1, ge=1)
    """Sub-envs that each worker steps at once (N)."""
    max_episode_steps: int | None = Field(None, ge=1)
    """Steps after which an episode is truncated; null means the env's own limit."""
    vectorization: Literal["auto", "sync", "native"] = "auto"
    """How a worker holds its sub-envs: one after the other in Python ("sync"), by the env's own vector
    implementation ("native"), or native where there is one ("auto")."""
    num_cpus: float = Field(1.0, ge=0)
    """CPUs reserved for each remote worker."""
    num_gpus: float = Field(0.0, ge=0)
    """GPUs reserved for each remote worker; a fraction shares one."""
    max_restarts: int = Field(3, ge=0)
    """Times that each worker is replaced after a fault of its env: it raised, gave a number that is not finite, took
    longer than ``step_timeout_s``, or its process died. The fault after the last time ends the run with its cause."""
    step_timeout_s: float | None = Field(None, gt=0)
    """Seconds that a reset or step of a remote worker may take; one that takes longer hangs, and its process is ended.
    null means no limit but ``cluster.call_timeout_s``, after which the run ends."""
    env_kwargs: FreeForm = Field(default_factory=dict)
    """Passed to the env's constructor as it is."""
    wrappers: list[WrapperConfig] = Field(default_factory=list)
    """Wrappers of Gymnasium around each sub-env, in training and in evaluation; the first one is innermost. Metrics and
    the policy see what the last one gives."""
    logged_info: list[str] = Field(default_factory=list)
    """Names in ``info`` of numbers whose last value of each episode is logged, as a mean over episodes:
    ``episode/info/<name>`` and ``eval/info/<name>``. ``is_success`` needs no entry: it is logged as a success rate."""
    text: TextConfig = TextConfig()


class EvalConfig(FiniteSection):
    """How a policy is evaluated, in training and by ``rlightning eval``."""

    episodes: int = Field(10, ge=1)
    """Whole episodes per evaluation, shared out over the sub-envs in advance."""
    num_envs: int = Field(10, ge=1)
    """Sub-envs of the evaluation worker; at most ``episodes`` of them are used."""
    deterministic: bool = True
    """Act with the mode of the policy; false samples."""
    seed: int = Field(1_000_003, ge=0, lt=_SEEDS)
    """Seed of the evaluation envs and of sampling in evaluation; training never uses it."""


class WeightBufferConfig(FiniteSection):
    """How new weights reach the eval policies."""

    type: Literal["WeightBuffer", "CPUWeightBuffer", "ShardedWeightBuffer"] = "WeightBuffer"
    """Where "Double" keeps its tensors: "WeightBuffer" on the policy's device, the others in host memory. "Shared" and
    "Sharded" always keep them there."""
    buffer_strategy: Literal["None", "Double", "Shared", "Sharded"] = "None"
    """"None": weights go straight in, between two requests. "Double": into a second copy while rollouts go on, then by
    an exchange of pointers. "Shared": one such pair of copies per node, which all eval policies there act with.
    "Sharded": likewise, and each eval policy of the node receives a part."""
    transport: Literal["auto", "object_store", "collective"] = "auto"
    """How weights travel between processes: by Ray's object store, or by a broadcast in a communication group (nccl or
    gloo). "auto" broadcasts where both roles have GPUs; else it takes memory that the processes of a node share, and
    the object store between nodes."""
    bucket_mb: float = Field(256.0, gt=0)
    """Megabytes that weights travel in at a time; a larger tensor travels by itself. With "None" no policy holds more
    than that beside its weights, unless it has a ``load_state_dict`` of its own, which gets all weights at once."""
    verify_interval: int = Field(0, ge=0)
    """Every so many pushes, compare what every eval policy acts with with the learner's, bit for bit; 0 means never."""
    on_mismatch: Literal["error", "log"] = "error"
    """What a difference does: end the run, or just write it into the log."""

    @property
    def ends_on_mismatch(self) -> bool:
        """Whether a difference ends the run."""
        return self.on_mismatch == "error"


class OptimConfig(FiniteSection):
    """The optimizer; its learning rate is ``train.lr``."""

    name: Literal["adam", "adamw", "sgd"] = "adam"
    """Which optimizer of torch."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """Decay of the moment estimates (adam, adamw)."""
    eps: float = Field(1e-5, gt=0)
    """Added to the denominator (adam, adamw)."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay per step."""
    momentum: float = Field(0.0, ge=0)
    """Momentum (sgd)."""
    schedule: Literal["constant", "linear"] = "constant"
    """"linear" goes from ``train.lr`` to 0 over ``train.max_epochs``."""
    max_grad_norm: float | None = Field(0.5, gt=0)
    """Gradients are scaled down to this global L2 norm; null leaves them."""


class PolicyConfig(FiniteSection):
    """What learns and acts."""

    type: str = "ppo"
    """Name of a registered policy; users register their own."""
    rollout_mode: Literal["sync", "async"] = "sync"
    """"sync": the requests of all env workers make one forward pass of ``rollout_step``. "async": each has a call of
    its own, and they overlap where ``rollout_step``, a coroutine, awaits."""
    router_type: Literal["simple", "node_affinity"] = "simple"
    """How sync requests are spread over eval policies; async ones go where the fewest are in flight."""
    weight_buffer: WeightBufferConfig = WeightBufferConfig()
    model_cfg: FreeForm = Field(default_factory=dict)
    """The networks; validated by the algorithm."""
    algo_cfg: FreeForm = Field(default_factory=dict)
    """The options of the algorithm; validated by the algorithm."""
    optim_cfg: OptimConfig = OptimConfig()
    init_from: str | None = None
    """Folder of a run or of a checkpoint whose weights and normalisers a new run begins with; optimizer, counters and
    schedules begin anew. Its spaces must be those of the env; tensors of other names or shapes are logged and left."""
    compile: bool = False
    """Whether torch compiles what the algorithm calls most, such as the loss: some 10 s at the first update, and less
    time per update from then on. A CPU needs a C++ compiler; on a GPU the calls are replayed as graphs of kernels."""
    train_num_cpus: float = Field(1.0, ge=0)
    """CPUs reserved for each remote train policy."""
    eval_num_cpus: float = Field(1.0, ge=0)
    """CPUs reserved for each remote eval policy."""
    train_num_gpus: float = Field(0.0, ge=0)
    """GPUs of each train policy; above 0 it computes on a GPU."""
    eval_num_gpus: float = Field(0.0, ge=0)
    """GPUs of each eval policy; above 0 it computes on a GPU."""

    @property
    def is_async(self) -> bool:
        """Whether ``rollout_step`` may be a coroutine, whose requests overlap."""
        return self.rollout_mode == "async"

    @property
    def prefers_own_node(self) -> bool:
        """Whether sync requests go to eval policies of the env worker's node."""
        return self.router_type == "node_affinity" and not self.is_async


class TrainConfig(FiniteSection):
    """The training loop. One epoch is: collect, learn, publish."""

    max_epochs: int = Field(100, ge=1)
    """Epochs of the whole run."""
    batch_size: int = Field(256, ge=1)
    """Transitions per gradient step (a minibatch), those of all train policies together."""
    max_rollout_steps: int = Field(128, ge=1)
    """Steps that every sub-env makes per epoch (T)."""
    max_eval_rollout_steps: int | None = Field(10_000, ge=1)
    """Steps after which an episode of an evaluation is cut, counts as truncated, and is reported; looked at every 16
    steps. null means no limit."""
    lr: float = Field(3e-4, gt=0)
    """Learning rate at the start."""
    parallel: Literal["none", "ddp"] = "none"
    """Several train policies train data parallel in either case; "ddp" has an algorithm's own ``wrap_with_ddp`` called
    where there is just one as well."""
    check_ranks_interval: int = Field(0, ge=0)
    """Epochs between comparisons, bit for bit, of what the train policies have learned; 0 means never."""
    eval_interval: int = Field(0, ge=0)
    """Epochs between evaluations; 0 means only at the end."""
    save_interval: int = Field(0, ge=0)
    """Epochs between checkpoints; 0 means only at the end, and when ``save_every_s`` is over."""
    save_every_s: float | None = Field(600.0, gt=0)
    """Seconds after which a checkpoint is due, whatever ``save_interval`` says; null means never."""
    save_dir: str = "runs"
    """Folder that gets one folder per run."""
    keep_checkpoints: int = Field(3, ge=1)
    """Newest checkpoints to keep, besides the best."""
    torch_threads: int = Field(1, ge=1)
    """Threads of torch in every worker. The same number everywhere, since sums depend on it. One is fastest for the
    small batches of acting."""
    learn_threads: int | None = Field(None, ge=1)
    """Threads of torch while a train policy learns; null means ``torch_threads``. More than one pays for large
    minibatches or networks on cores that nothing else uses; where the cores are busy it costs many times more than it
    saves."""

    @property
    def is_ddp(self) -> bool:
        """Whether an algorithm's ``wrap_with_ddp`` is called also where there is one train policy."""
        return self.parallel == "ddp"


class BufferConfig(FiniteSection):
    """Where transitions wait for the learner."""

    type: str = "rollout"
    """Name of a registered buffer; "rollout" is a block of T steps of all sub-envs."""
    capacity: int | None = Field(None, ge=1)
    """Steps per sub-env that a block holds; null means ``train.max_rollout_steps``."""
    sampler: Literal["all"] = "all"
    """"all" hands the whole block to the learner."""
    storage: Literal["memory"] = "memory"
    """Where the data lies."""
    auto_truncate_episode: bool = True
    """Close the open episodes by a bootstrap when the learner takes the block."""


class PlacementConfig(FiniteSection):
    """Where the workers are."""

    mode: Literal["auto", "manual"] = "auto"
    """Whether ``strategy`` places the workers, or the pools of ``cluster.resource_pool`` do."""
    strategy: Literal["default", "disaggregate", "colocate"] = "default"
    """"default": Ray decides; "colocate" where ``cluster.is_colocated`` is true. "disaggregate": train policies and
    shards have nodes or devices of their own, and eval policies and envs the others. "colocate": one pool of all nodes,
    in which eval policies share the device of their train policy, or its node where their shares of a device do not fit
    together."""
    env_strategy: Literal["default", "auto", "device-colocate", "node-affinity", "process-colocate"] = "default"
    """Where env workers are relative to eval policies; env worker i belongs to eval policy i modulo their number.
    "node-affinity": on its node. "device-colocate": on its GPU; on its node where there are no GPUs.
    "process-colocate": in its process, and each process collects all steps of an epoch by one call. "auto":
    "process-colocate" where env and policy allow it and no env worker would wait for another one, else "default";
    ``rlightning check`` says which and why."""


class PoolConfig(FiniteSection):
    """Nodes, or parts of them, and the workers there (``cluster.placement.mode: manual``).

    A pool is a row of places, numbered through its nodes: a place is a GPU of the pool, and a CPU on a node of which
    the pool has no GPU.
    """

    node_ids: list[str] = Field(default_factory=list)
    """Nodes by their names; empty means the first ``num_nodes`` that no other pool has (pools choose in the order of
    their names)."""
    num_nodes: int | None = Field(None, ge=1)
    """Number of nodes; null means all of ``node_ids``, or all that no other pool has."""
    gpus_per_node: int | None = Field(None, ge=0)
    """GPUs of each node, the first ones that no other pool has; null means all of the node."""
    cpus_per_node: float | None = Field(None, gt=0)
    """CPUs of each node; null means all of the node."""
    shares_with: list[str] = Field(default_factory=list)
    """Pools that may have the same GPUs. Without it, a node is in two pools only where both say how many GPUs and CPUs
    of it they have."""
    components: dict[Literal["train", "eval", "buffer", "env", "eval_env"], str] = Field(default_factory=dict)
    """Component -> places of its workers: "0-7, 8-15", or "all" to have them spread. With as many
    items as workers each worker has one item; otherwise the places are shared out evenly, in order. A component is in
    one pool. Shards that are in none are beside their train policies, evaluation envs in the pool of the envs, and envs
    that belong to an eval policy beside it."""


class NeedsConfig(FiniteSection):
    """What a worker needs besides CPUs and GPUs."""

    memory_gb: float = Field(0.0, ge=0)
    """Host memory in GB (10^9 bytes)."""
    resources: dict[str, Amount] = Field(default_factory=dict)
    """Custom resources of the cluster: name -> amount."""


class WorkerNeedsConfig(FiniteSection):
    """What each worker needs besides CPUs and GPUs."""

    train: NeedsConfig = NeedsConfig()
    eval: NeedsConfig = NeedsConfig()
    buffer: NeedsConfig = NeedsConfig()
    env: NeedsConfig = NeedsConfig()
    eval_env: NeedsConfig = NeedsConfig()


class ClusterConfig(FiniteSection):
    """Which workers run where. With everything local there is one process and no Ray."""

    ray_address: str = "local"
    """"local" starts a Ray of its own; "auto" or an address joins a running one. Used if any worker is remote."""
    train_worker_num: int = Field(1, ge=1)
    """Train policies (learners), which train data parallel."""
    eval_worker_num: int = Field(1, ge=1)
    """Eval policies (actors)."""
    buffer_worker_num: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """Shards of the data buffer; each takes a block of the env workers and gives to a block of the train policies.
    "auto": one per node with train policies, and never more than train policies or env workers."""
    remote_train: bool = False
    """Train policies are processes of their own."""
    remote_eval: bool = False
    """Eval policies are processes of their own."""
    remote_storage: bool = False
    """Buffer shards are processes of their own."""
    remote_env: bool = False
    """Env workers are processes of their own."""
    is_colocated: bool = False
    """Train and eval policies share their place."""
    enable_offload: bool = False
    """Keep what acts in host memory while learning, and models and optimizers that learn while collecting."""
    start_timeout_s: float = Field(120.0, gt=0)
    """Seconds that starting a worker may take."""
    call_timeout_s: float = Field(600.0, gt=0)
    """Seconds that one call on a worker may take."""
    placement: PlacementConfig = PlacementConfig()
    resource_pool: dict[str, PoolConfig] = Field(default_factory=dict)
    """Pools of resources for manual placement, by name."""
    needs: WorkerNeedsConfig = WorkerNeedsConfig()

    @property
    def any_remote(self) -> bool:
        """Whether Ray is needed."""
        return self.remote_train or self.remote_eval or self.remote_storage or self.remote_env


class LogConfig(FiniteSection):
    """What a run tells, and where."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""
    backend: list[Literal["tensorboard", "wandb"]] = ["tensorboard"]
    """Metric services besides the local log, which is always written."""
    project: str = "rlightning"
    """Project at the metric service."""
    name: str = ""
    """Name of the run; empty means the preset's name and the time."""
    log_dir: str = ""
    """Folder in which each run has a folder with the metric service's files; empty means the run's own folder."""
    mode: Literal["online", "offline"] = "offline"
    """Whether the metric service may use the network."""
    progress: bool = True
    """Show a progress display on the terminal."""
    trace: bool = False
    """Write what each worker did when into ``trace.json`` of the run's folder, for Perfetto or ``chrome://tracing``."""


def _one_env_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, dict | EnvConfig) else value


class Config(FiniteSection):
    """A whole run."""

    seed: int = Field(0, ge=0, lt=_SEEDS)
    """All randomness of the run follows from it."""
    engine: Literal["syncrl", "rsl", "eval"] = "syncrl"
    """Which loop runs."""
    imports: list[str] = Field(default_factory=list)
    """Your own modules (dotted names or paths of files) that register envs, policies and models."""
    env: Annotated[list[EnvConfig], BeforeValidator(_one_env_is_a_list), Field(min_length=1)]
    """The envs; more than one entry makes a multi-task run."""
    evaluation: EvalConfig = EvalConfig()
    policy: PolicyConfig = PolicyConfig()
    train: TrainConfig = TrainConfig()
    buffer: BufferConfig = BufferConfig()
    cluster: ClusterConfig = ClusterConfig()
    log: LogConfig = LogConfig()
    callbacks: list[CallbackConfig] = Field(default_factory=list)
    """What is called at the events of the run, in order."""

    @property
    def num_env_workers(self) -> int:
        """Env workers of training."""
        return sum(env.num_workers for env in self.env)

    @property
    def num_envs(self) -> int:
        """All sub-envs of all workers."""
        return sum(env.num_workers * env.num_envs for env in self.env)
