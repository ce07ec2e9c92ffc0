"""From a configuration to the parts of a run. Options are read here, once, and become objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rlightning.assembly.context import current_run
from rlightning.assembly.lodging import Lodging
from rlightning.assembly.place import require_devices
from rlightning.assembly.seats import AnySeat, seats_of
from rlightning.assembly.workers import env_kind, of_generation, plan_workers, shares_processes
from rlightning.buffer.data_buffer import DataBuffer
from rlightning.config import Config
from rlightning.engine.base_engine import BaseEngine
from rlightning.engine.eval_engine import EvalEngine
from rlightning.engine.evaluation import Evaluator
from rlightning.engine.fragments import FragmentEngine, FragmentGroup
from rlightning.engine.recorder import Recorder
from rlightning.engine.sync_engine import RslEngine, SyncEngine
from rlightning.env.env_group import EnvGroup
from rlightning.env.faults import Replacements
from rlightning.policy.group_weights import weight_carrier
from rlightning.policy.policy_group import PolicyGroup
from rlightning.registry import lookup
from rlightning.runtime.spawn import WorkerPool, WorkerSetup, WorkerSpec
from rlightning.types import EnvMeta

ENGINES: dict[str, type[BaseEngine]] = {"syncrl": SyncEngine, "rsl": RslEngine, "eval": EvalEngine}
"""Loops by ``engine``."""


def build_env_group(config: Config) -> EnvGroup:
    """Start the env workers of training, and with ``process-colocate`` the eval policies that they live with."""
    plan = plan_workers(config)
    if not shares_processes(config):
        return _env_group(config, plan.env)
    hosts = plan.eval
    with _pool(config) as pool:
        workers = pool.start([*hosts, *plan.env])
        lodging = Lodging(config, pool, workers[: len(hosts)])
        return EnvGroup(
            workers[len(hosts) :],
            call_timeout_s=config.cluster.call_timeout_s,
            on_close=lodging.close,
            replacements=_replacements(pool, plan.env),
        )


def build_eval_env_group(config: Config) -> EnvGroup:
    """Start the env workers of evaluations."""
    return _env_group(config, plan_workers(config).eval_env)


def build_policy_group(config: Config, env_meta: EnvMeta) -> PolicyGroup:
    """Start and initialise the policies.

    Args:
        config: The whole configuration.
        env_meta: ``EnvGroup.env_meta``: the spaces that the networks must fit.

    Raises:
        ProtocolError: If the env group was not built before from the same configuration, with ``process-colocate``.
    """
    lodging = Lodging.of(config) if shares_processes(config) else None
    plan = plan_workers(config)
    count = len(plan.train)
    with _pool(config) as pool:
        workers = pool.start([*plan.train, *([] if lodging else plan.eval)])
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
    """Start the shards of the data buffer; where the workers of the run have their places, data keep to their nodes."""
    seats = seats_of(config)
    config = config if seats is None else seats.config
    routes = None if seats is None else seats.routes()
    with _pool(config) as pool:
        return DataBuffer(
            pool.start(plan_workers(config, routes).buffer),
            routes=routes,
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
    require_devices(config)
    cluster = config.cluster
    remote = [spec for spec in plan_workers(config).all() if spec.remote]
    pool = WorkerPool(
        cluster.ray_address,
        WorkerSetup(config.train.torch_threads, config.seed, current_run.get().log_dir, config.log.level),
        start_timeout_s=cluster.start_timeout_s,
        total_cpus=sum(spec.num_cpus for spec in remote),
        total_gpus=sum(spec.num_gpus for spec in remote),
        seats=seats_of(config) or AnySeat(config),
    )
    try:
        yield pool
    except BaseException:
        pool.stop()
        raise


def _env_group(config: Config, specs: list[WorkerSpec]) -> EnvGroup:
    with _pool(config) as pool:
        return EnvGroup(
            pool.start(specs),
            call_timeout_s=config.cluster.call_timeout_s,
            on_close=pool.stop,
            replacements=_replacements(pool, specs),
        )


def _replacements(pool: WorkerPool, specs: Sequence[WorkerSpec]) -> Replacements:
    """Say how env workers that a pool started are replaced."""

    def build(env_id: int, old: Any, generation: int) -> Any:
        return pool.replace(old, of_generation(specs[env_id], generation))

    kinds = [env_kind(spec) for spec in specs]
    return Replacements(
        names=[spec.name for spec in specs],
        max_restarts=[kind.max_restarts for kind in kinds],
        # A call here cannot be left alone.
        step_timeout_s=[kind.step_timeout_s if spec.remote else None for spec, kind in zip(specs, kinds, strict=True)],
        build=build,
    )
