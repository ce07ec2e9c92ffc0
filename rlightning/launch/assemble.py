"""From a configuration to the parts of a run. Options are read here, once, and become objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from rlightning.buffer.assignment import blocks
from rlightning.buffer.data_buffer import DataBuffer
from rlightning.buffer.shard import BufferShard
from rlightning.config import Config, EnvConfig
from rlightning.engine.base_engine import BaseEngine
from rlightning.engine.eval_engine import EvalEngine
from rlightning.engine.evaluation import Evaluator, eval_env_counts
from rlightning.engine.fragments import FragmentEngine, FragmentGroup
from rlightning.engine.recorder import Recorder
from rlightning.engine.sync_engine import RslEngine, SyncEngine
from rlightning.env.env_group import EnvGroup
from rlightning.env.env_worker import EnvWorker
from rlightning.launch.lodging import Lodging
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.group_routing import request_channel
from rlightning.policy.group_weights import weight_carrier
from rlightning.policy.policy_group import PolicyGroup
from rlightning.policy.router import SimpleRouter
from rlightning.registry import lookup
from rlightning.runtime.spawn import WorkerPool, WorkerSetup, WorkerSpec
from rlightning.types import EnvMeta

ENGINES: dict[str, type[BaseEngine]] = {"syncrl": SyncEngine, "rsl": RslEngine, "eval": EvalEngine}
"""Loops by ``engine``."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What the parts of a run are given besides the configuration.

    Attributes:
        recorder: Takes metrics and checkpoints.
        log_dir: Folder of the log files of all processes.
    """

    recorder: Recorder | None = None
    log_dir: Path | None = None


current_run: ContextVar[RunContext] = ContextVar("current_run", default=RunContext())  # noqa: B039 (it is frozen)
"""Set by ``launch``, so that a script need not pass it on."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Every worker of a run, before any is started.

    Attributes:
        env: Env workers for training, by env id.
        eval_env: Env workers for evaluation.
        train: Train policies.
        eval: Eval policies.
        buffer: Buffer shards.
    """

    env: list[WorkerSpec]
    eval_env: list[WorkerSpec]
    train: list[WorkerSpec]
    eval: list[WorkerSpec]
    buffer: list[WorkerSpec]

    def all(self) -> list[WorkerSpec]:
        """List all workers in the order in which they start."""
        return [*self.env, *self.eval_env, *self.train, *self.eval, *self.buffer]


def plan_workers(config: Config) -> WorkerPlan:
    """Say which workers a run has; starts nothing."""
    return WorkerPlan(
        env=_train_env_specs(config),
        eval_env=_eval_env_specs(config),
        train=_policy_specs(config, PolicyRole.TRAIN),
        eval=_policy_specs(config, PolicyRole.EVAL),
        buffer=_buffer_specs(config),
    )


def build_env_group(config: Config) -> EnvGroup:
    """Start the env workers of training, and with ``process-colocate`` the eval policies that they live with."""
    specs = _train_env_specs(config)
    if not shares_processes(config):
        return _env_group(config, specs)
    with _pool(config) as pool:
        hosts = _policy_specs(config, PolicyRole.EVAL)
        workers = pool.start([*hosts, *specs])
        lodging = Lodging(config, pool, workers[: len(hosts)])
        return EnvGroup(workers[len(hosts) :], call_timeout_s=config.cluster.call_timeout_s, on_close=lodging.close)


def build_eval_env_group(config: Config) -> EnvGroup:
    """Start the env workers of evaluations."""
    return _env_group(config, _eval_env_specs(config))


def build_policy_group(config: Config, env_meta: EnvMeta) -> PolicyGroup:
    """Start and initialise the policies.

    Args:
        config: The whole configuration.
        env_meta: ``EnvGroup.env_meta``: the spaces that the networks must fit.

    Raises:
        ProtocolError: If the env group was not built before from the same configuration, with ``process-colocate``.
    """
    lodging = Lodging.of(config) if shares_processes(config) else None
    specs = _policy_specs(config, PolicyRole.TRAIN)
    count = len(specs)
    if lodging is None:
        specs += _policy_specs(config, PolicyRole.EVAL)
    with _pool(config) as pool:
        workers = pool.start(specs)
        group = PolicyGroup(
            workers[:count],
            workers[count:] if lodging is None else lodging.hosts,
            config.policy,
            seed=config.seed,
            call_timeout_s=config.cluster.call_timeout_s,
            on_shutdown=pool.stop if lodging is None else _stop_both(pool, lodging.pool),
        )
        is_colocated = config.cluster.is_colocated
        group.init_placement_info(is_colocated)
        group.init_weight_buffer()
        if config.cluster.train_worker_num > 1 or weight_carrier(config.policy) == "collective":
            group.init_comm_group(is_colocated=is_colocated)
        group.init(config.train, env_meta, config.evaluation)
    if lodging is not None:
        lodging.hand_over()
    return group


def build_data_buffer(config: Config) -> DataBuffer:
    """Start the shards of the data buffer."""
    with _pool(config) as pool:
        return DataBuffer(
            pool.start(_buffer_specs(config)),
            num_env_workers=config.num_env_workers,
            num_learners=config.cluster.train_worker_num,
            call_timeout_s=config.cluster.call_timeout_s,
            on_close=pool.stop,
        )


def build_engine(
    config: Config,
    env_group: EnvGroup,
    policy_group: PolicyGroup,
    data_buffer: DataBuffer,
    *,
    recorder: Recorder | None = None,
) -> BaseEngine:
    """Put the parts together.

    Args:
        config: The whole configuration.
        env_group: Envs to train on.
        policy_group: Initialised policies.
        data_buffer: Where collected data go.
        recorder: Takes metrics and checkpoints; None means that of ``launch``, and without one nothing is kept.
    """
    policy_group.init_router([info.node for info in env_group.infos()])
    evaluator = Evaluator(
        build_eval_env_group(config),
        policy_group,
        config.evaluation,
        config.train.max_eval_rollout_steps,
        call_timeout_s=config.cluster.call_timeout_s,
    )
    parts = (config, env_group, policy_group, data_buffer)
    recorder = recorder if recorder is not None else current_run.get().recorder
    if config.engine == "syncrl" and shares_processes(config):
        storage, timeout_s = lookup("buffer", config.buffer.type), config.cluster.call_timeout_s
        fragments = FragmentGroup(env_group, storage, config.train.max_rollout_steps, timeout_s)
        return FragmentEngine(*parts, evaluator=evaluator, recorder=recorder, fragments=fragments)
    return ENGINES[config.engine](*parts, evaluator=evaluator, recorder=recorder)


def assemble(config: Config, *, recorder: Recorder | None = None) -> BaseEngine:
    """Build all parts of a run and the engine that runs it; close the engine at the end."""
    with ExitStack() as started:
        env_group = build_env_group(config)
        started.callback(env_group.close)
        policy_group = build_policy_group(config, env_group.env_meta)
        started.callback(policy_group.shutdown)
        data_buffer = build_data_buffer(config)
        started.callback(data_buffer.close)
        engine = build_engine(config, env_group, policy_group, data_buffer, recorder=recorder)
        started.pop_all()
    return engine


def shares_processes(config: Config) -> bool:
    """Tell whether env workers live in the processes of eval policies, so that data are collected by fragment."""
    return config.cluster.placement.env_strategy == "process-colocate"


def _stop_both(first: WorkerPool, second: WorkerPool) -> Callable[[], None]:
    def stop() -> None:
        try:
            first.stop()
        finally:
            second.stop()

    return stop


@contextmanager
def _pool(config: Config) -> Iterator[WorkerPool]:
    """Make a pool that ends its workers again if not all that is built on them comes to be."""
    cluster = config.cluster
    remote = [spec for spec in plan_workers(config).all() if spec.remote]
    pool = WorkerPool(
        cluster.ray_address,
        WorkerSetup(config.train.torch_threads, config.seed, current_run.get().log_dir, config.log.level),
        start_timeout_s=cluster.start_timeout_s,
        total_cpus=sum(spec.num_cpus for spec in remote),
        total_gpus=sum(spec.num_gpus for spec in remote),
    )
    try:
        yield pool
    except BaseException:
        pool.stop()
        raise


def _env_group(config: Config, specs: list[WorkerSpec]) -> EnvGroup:
    with _pool(config) as pool:
        return EnvGroup(pool.start(specs), call_timeout_s=config.cluster.call_timeout_s, on_close=pool.stop)


def _train_env_specs(config: Config) -> list[WorkerSpec]:
    return [_env_spec(config, kind, index, config.seed, "train") for index, kind in enumerate(_env_kinds(config))]


def _eval_env_specs(config: Config) -> list[WorkerSpec]:
    counts = eval_env_counts(config.evaluation, config.env)
    kinds = [kind.model_copy(update={"num_envs": count}) for kind, count in zip(config.env, counts, strict=True)]
    return [_env_spec(config, kind, index, config.evaluation.seed, "eval") for index, kind in enumerate(kinds)]


def _env_spec(config: Config, kind: EnvConfig, index: int, seed: int, purpose: str) -> WorkerSpec:
    name = f"env[{index}]" if purpose == "train" else f"eval_env[{index}]"
    args = (lookup("simulator", kind.backend), kind, index, seed, purpose)
    if purpose == "train" and shares_processes(config):
        return WorkerSpec(EnvWorker, args, name, num_cpus=0.0, host=f"eval[{host_of(config, index)}]")
    return WorkerSpec(EnvWorker, args, name, config.cluster.remote_env, kind.num_cpus, kind.num_gpus)


def host_of(config: Config, env_id: int) -> int:
    """Say in the process of which eval policy an env worker lives: of the one that would answer it step by step."""
    (index,) = SimpleRouter().select([env_id], [0] * config.cluster.eval_worker_num)
    return index


def _policy_specs(config: Config, role: PolicyRole) -> list[WorkerSpec]:
    policy, cluster = config.policy, config.cluster
    if role is PolicyRole.TRAIN:
        count, remote = cluster.train_worker_num, cluster.remote_train
        cpus, gpus = policy.train_num_cpus, policy.train_num_gpus
    else:
        count, remote = cluster.eval_worker_num, cluster.remote_eval
        cpus, gpus = policy.eval_num_cpus, policy.eval_num_gpus
    args = (policy, role)
    cls = lookup("policy", policy.type)
    channels = _eval_channels(config) if role is PolicyRole.EVAL else {}
    specs = [WorkerSpec(cls, args, f"{role.value}[{index}]", remote, cpus, gpus, channels) for index in range(count)]
    if role is PolicyRole.EVAL and shares_processes(config):
        specs = _with_guests(config, specs)
    return specs


def _with_guests(config: Config, hosts: list[WorkerSpec]) -> list[WorkerSpec]:
    """Add to eval policies what the env workers in their processes need."""
    cpus, gpus = [spec.num_cpus for spec in hosts], [spec.num_gpus for spec in hosts]
    for env_id, kind in enumerate(_env_kinds(config)):
        host = host_of(config, env_id)
        cpus[host] = max(cpus[host], kind.num_cpus)  # those of one process take turns
        gpus[host] += kind.num_gpus
    return [replace(spec, num_cpus=cpu, num_gpus=gpu) for spec, cpu, gpu in zip(hosts, cpus, gpus, strict=True)]


def _env_kinds(config: Config) -> list[EnvConfig]:
    """List the configuration of each env worker of training, by env id."""
    return [kind for kind in config.env for _ in range(kind.num_workers)]


def _eval_channels(config: Config) -> dict[str, int]:
    """Let new weights, and with async rollouts the requests of each env worker, come beside all other calls."""
    channels = {"weights": 1}
    if config.policy.rollout_mode == "async":
        workers = max(len(config.env), sum(kind.num_workers for kind in config.env))
        channels |= {request_channel(env_id): 1 for env_id in range(workers)}
    return channels


def _buffer_specs(config: Config) -> list[WorkerSpec]:
    num_envs = [kind.num_envs for kind in _env_kinds(config)]
    capacity = config.buffer.capacity or config.train.max_rollout_steps
    storage = lookup("buffer", config.buffer.type)
    # One shard per node with train policies: without a plan of several nodes, one.
    shards = 1 if config.cluster.buffer_worker_num == "auto" else config.cluster.buffer_worker_num
    return [
        WorkerSpec(
            BufferShard,
            (storage, capacity, num_envs[block.start : block.stop], block.start),
            f"buffer[{index}]",
            config.cluster.remote_storage,
        )
        for index, block in enumerate(blocks(len(num_envs), shards))
    ]
