"""From a configuration to the parts of a run. Options are read here, once, and become objects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from rlightning.assembly.run import Run
from rlightning.assembly.workers import env_kind, of_generation
from rlightning.buffer.data_buffer import DataBuffer
from rlightning.collect.collector import Collector
from rlightning.collect.eager import EagerCollector
from rlightning.collect.fragments import FragmentCollector
from rlightning.collect.stepwise import StepwiseCollector
from rlightning.config import Config
from rlightning.engine.base_engine import BaseEngine
from rlightning.engine.callbacks import Callback
from rlightning.engine.eval_engine import EvalEngine
from rlightning.engine.evaluation import Evaluator
from rlightning.engine.policy_spec import find_checkpoint, load_trained
from rlightning.engine.recorder import Recorder
from rlightning.engine.sync_engine import SyncEngine
from rlightning.env.env_group import EnvGroup
from rlightning.env.faults import RestartRules
from rlightning.errors import CheckpointError, ConfigError, Problem, ProtocolError, WorkerError
from rlightning.policy.policy_group import PolicyGroup
from rlightning.registry import lookup
from rlightning.runtime.spawn import WorkerPool, WorkerSpec
from rlightning.types import EnvMeta
from rlightning.types.spaces import meta_from_state

logger = logging.getLogger(__name__)

ENGINES: dict[str, type[BaseEngine]] = {"syncrl": SyncEngine, "rsl": SyncEngine, "eval": EvalEngine}
"""Loops by ``engine``."""
COLLECTORS = {"syncrl": StepwiseCollector, "rsl": EagerCollector, "eval": StepwiseCollector}
"""How data come by ``engine``, where env workers are workers of their own."""


def trains(config: Config) -> bool:
    """Return whether the loop of a configuration has epochs; otherwise it evaluates once."""
    return ENGINES[config.engine] is not EvalEngine


def build_env_group(config: Config, *, run: Run | None = None) -> EnvGroup:
    """Start the env workers of training, and with ``process-colocate`` the eval policies that they live with.

    Args:
        config: The whole configuration.
        run: The run that the group is part of; None means that which builders of this context began with the same
            configuration object, or a new one. All builders take it.
    """
    run = run or Run.of(config, "build_env_group")
    workers = run.plan.workers
    hosts = workers.eval if run.plan.by_fragment else []
    with run.pool() as pool:
        started = pool.start([*hosts, *workers.env])
        if hosts:
            run.hosts, run.host_pool = started[: len(hosts)], pool
        on_close = run.close_hosts if hosts else partial(run.close, pool)
        group = _env_group(run, pool, started[len(hosts) :], workers.env, on_close)
    run.env_meta = group.env_meta
    run.built.add("build_env_group")
    return group


def build_eval_env_group(config: Config, *, run: Run | None = None) -> EnvGroup:
    """Start the env workers of evaluations."""
    run = run or Run.of(config, "build_eval_env_group")
    specs = run.plan.workers.eval_env
    with run.pool() as pool:
        group = _env_group(run, pool, pool.start(specs), specs, partial(run.close, pool))
    run.built.add("build_eval_env_group")
    return group


def build_policy_group(config: Config, env_meta: EnvMeta, *, run: Run | None = None) -> PolicyGroup:
    """Start and initialise the policies.

    Args:
        config: The whole configuration.
        env_meta: ``EnvGroup.env_meta``: the spaces that the networks must fit.
        run: See ``build_env_group``.

    Raises:
        ProtocolError: If the env group was not built before from the same configuration, with ``process-colocate``.
    """
    run = run or Run.of(config, "build_policy_group", env_meta)
    plan = run.plan
    if plan.by_fragment and run.hosts is None:
        raise ProtocolError(
            "with cluster.placement.env_strategy=process-colocate the eval policies start with the env group: call "
            "build_env_group before build_policy_group, with the same configuration object"
        )
    learners = plan.workers.train
    with run.pool() as pool:
        workers = pool.start([*learners, *([] if plan.by_fragment else plan.workers.eval)])
        group = PolicyGroup(
            workers[: len(learners)],
            workers[len(learners) :] if run.hosts is None else run.hosts,
            config.policy,
            seed=config.seed,
            call_timeout_s=config.cluster.call_timeout_s,
            on_shutdown=partial(run.close, pool, *([run.host_pool] if run.host_pool is not None else [])),
        )
        group.init_placement_info(plan.weights.is_paired)
        group.init_weight_buffer()
        if len(learners) > 1 or plan.weights.is_broadcast:
            group.init_comm_group(is_colocated=plan.weights.is_paired)
        group.init(config.train, env_meta, config.evaluation)
        if config.policy.init_from is not None:
            _begin_with(group, config.policy.init_from, env_meta)
    run.hosts = None  # the policy group ends them from now on
    run.built.add("build_policy_group")
    return group


def _begin_with(group: PolicyGroup, source: str, env_meta: EnvMeta) -> None:
    """Begin with the weights of an earlier run, and log what was not taken.

    Raises:
        ConfigError: If there is no such run, it is of other spaces, or nothing of it fits.
    """
    option = "policy.init_from"
    try:
        checkpoint = find_checkpoint(source)
        state, spec = load_trained(checkpoint)
        if spec is not None and spec["env_meta"] is not None:
            _require_equal_spaces(meta_from_state(spec["env_meta"]), env_meta, option)
        left = group.state.take_weights(state)
    except (CheckpointError, WorkerError) as error:
        cause = error.__cause__ if isinstance(error, WorkerError) else error
        if not isinstance(cause, CheckpointError):
            raise
        raise ConfigError(Problem(option, f"{source}: {cause}")) from error
    logger.info("begins with the weights of %s, version %d", checkpoint.resolve(), state["train"]["version"])
    for one in left:
        logger.warning("policy.init_from: %s", one)


def _require_equal_spaces(stored: EnvMeta, env_meta: EnvMeta, option: str) -> None:
    for name in ("observation_space", "action_space"):
        theirs, ours = getattr(stored, name), getattr(env_meta, name)
        if theirs != ours:
            what = name.replace("_", " ")
            message = f"its {what} is {theirs}, of {stored.name}, and that of {env_meta.name} is {ours}"
            raise ConfigError(Problem(option, message))


def build_data_buffer(config: Config, *, run: Run | None = None) -> DataBuffer:
    """Start the shards of the data buffer; where the workers of the run have their places, data keep to their nodes."""
    run = run or Run.of(config, "build_data_buffer")
    plan = run.plan
    with run.pool() as pool:
        buffer = DataBuffer(
            pool.start(plan.workers.buffer),
            routes=plan.routes,
            num_env_workers=len(plan.workers.env),
            num_learners=len(plan.workers.train),
            call_timeout_s=config.cluster.call_timeout_s,
            on_close=partial(run.close, pool),
        )
    run.built.add("build_data_buffer")
    return buffer


def build_engine(
    config: Config,
    env_group: EnvGroup,
    policy_group: PolicyGroup,
    data_buffer: DataBuffer,
    *,
    recorder: Recorder | None = None,
    callbacks: Sequence[Callback] = (),
    run: Run | None = None,
) -> BaseEngine:
    """Put the parts together.

    Args:
        config: The whole configuration.
        env_group: Envs to train on.
        policy_group: Initialised policies.
        data_buffer: Where collected data go.
        recorder: Receives metrics and checkpoints; None means that of ``launch``, and without one nothing is kept.
        callbacks: Called at the events of the run, after those of the configuration.
        run: See ``build_env_group``.
    """
    run = run or Run.of(config, "build_engine")
    policy_group.routing.place_envs([info.node for info in env_group.infos()])
    evaluator = Evaluator(
        build_eval_env_group(config, run=run),
        policy_group,
        config.evaluation,
        config.train.max_eval_rollout_steps,
        call_timeout_s=config.cluster.call_timeout_s,
    )
    collector = build_collector(config, env_group, policy_group, data_buffer, by_fragment=run.plan.by_fragment)
    recorder = recorder if recorder is not None else run.context.recorder
    run.built.add("build_engine")
    parts = (config, collector, policy_group, data_buffer)
    named = [lookup("callback", entry.name)(**entry.arguments) for entry in config.callbacks]
    return ENGINES[config.engine](*parts, evaluator=evaluator, recorder=recorder, callbacks=[*named, *callbacks])


def build_collector(
    config: Config, env_group: EnvGroup, policy_group: PolicyGroup, data_buffer: DataBuffer, *, by_fragment: bool
) -> Collector:
    """Put together what brings the data.

    Args:
        config: The whole configuration.
        env_group: Envs to train on.
        policy_group: Initialised policies.
        data_buffer: Where collected data go.
        by_fragment: Whether the env workers live in the processes of eval policies.
    """
    timeout_s = config.cluster.call_timeout_s
    if by_fragment:
        return FragmentCollector(env_group, data_buffer, lookup("buffer", config.buffer.type), timeout_s)
    return COLLECTORS[config.engine](env_group, policy_group, data_buffer, timeout_s)


def assemble(config: Config, *, recorder: Recorder | None = None, callbacks: Sequence[Callback] = ()) -> BaseEngine:
    """Build all parts of a run and the engine that runs it; close the engine at the end.

    Args:
        config: The whole configuration.
        recorder: See ``build_engine``.
        callbacks: Called at the events of the run, after those of the configuration.
    """
    run = Run(config)
    with ExitStack() as started:
        env_group = build_env_group(config, run=run)
        started.callback(env_group.close)
        policy_group = build_policy_group(config, env_group.env_meta, run=run)
        started.callback(policy_group.shutdown)
        data_buffer = build_data_buffer(config, run=run)
        started.callback(data_buffer.close)
        engine = build_engine(
            config, env_group, policy_group, data_buffer, recorder=recorder, callbacks=callbacks, run=run
        )
        started.pop_all()
    return engine


def _env_group(
    run: Run, pool: WorkerPool, workers: list[Any], specs: list[WorkerSpec], on_close: Callable[[], None]
) -> EnvGroup:
    return EnvGroup(
        workers,
        call_timeout_s=run.plan.config.cluster.call_timeout_s,
        on_close=on_close,
        restarts=_restart_rules(pool, specs),
    )


def _restart_rules(pool: WorkerPool, specs: Sequence[WorkerSpec]) -> RestartRules:
    """Return how env workers that a pool started are replaced."""

    def build(env_id: int, old: Any, generation: int) -> Any:
        return pool.replace(old, of_generation(specs[env_id], generation))

    kinds = [env_kind(spec) for spec in specs]
    return RestartRules(
        names=[spec.name for spec in specs],
        max_restarts=[kind.max_restarts for kind in kinds],
        # A call here cannot be left alone.
        step_timeout_s=[kind.step_timeout_s if spec.remote else None for spec, kind in zip(specs, kinds, strict=True)],
        build=build,
    )
