"""From a configuration to what each worker of a run is; starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlightning.assembly.way import Way, choose_way
from rlightning.buffer.assignment import BufferRoutes, routes_in_order
from rlightning.config import Config, EnvConfig
from rlightning.engine.evaluation import eval_env_counts
from rlightning.env.env_worker import EnvWorker
from rlightning.policy.base_policy import PolicyRole
from rlightning.policy.group_routing import request_channel
from rlightning.policy.router import SimpleRouter
from rlightning.registry import lookup
from rlightning.runtime.spawn import WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Every worker of a run, before any is started.

    Attributes:
        way: How data are collected, which decides on the processes of env workers.
        env: Env workers for training, by env id.
        eval_env: Env workers for evaluation.
        train: Train policies.
        eval: Eval policies.
        buffer: Buffer shards.
    """

    way: Way
    env: list[WorkerSpec]
    eval_env: list[WorkerSpec]
    train: list[WorkerSpec]
    eval: list[WorkerSpec]
    buffer: list[WorkerSpec]

    def all(self) -> list[WorkerSpec]:
        """List all workers in the order in which they start."""
        return [*self.env, *self.eval_env, *self.train, *self.eval, *self.buffer]


def plan_workers(config: Config) -> WorkerPlan:
    """List the workers of a run, with blocks of neighbouring env workers for each shard; starts nothing."""
    # "auto" is a shard per node with train policies: without a plan of several nodes, one.
    shards = 1 if config.cluster.buffer_worker_num == "auto" else config.cluster.buffer_worker_num
    way = choose_way(config)
    env, eval_policies = _train_env_specs(config), _policy_specs(config, PolicyRole.EVAL)
    if way.by_fragment:
        env, eval_policies = _in_one_process(env, eval_policies)
    return WorkerPlan(
        way,
        env=env,
        eval_env=_eval_env_specs(config),
        train=_policy_specs(config, PolicyRole.TRAIN),
        eval=eval_policies,
        buffer=buffer_specs(config, routes_in_order(config.num_env_workers, shards, config.cluster.train_worker_num)),
    )


def _train_env_specs(config: Config) -> list[WorkerSpec]:
    return [_env_spec(config, kind, index, config.seed, "train") for index, kind in enumerate(_env_kinds(config))]


def _eval_env_specs(config: Config) -> list[WorkerSpec]:
    counts = eval_env_counts(config.evaluation, config.env)
    kinds = [kind.model_copy(update={"num_envs": count}) for kind, count in zip(config.env, counts, strict=True)]
    return [_env_spec(config, kind, index, config.evaluation.seed, "eval") for index, kind in enumerate(kinds)]


def _env_spec(config: Config, kind: EnvConfig, index: int, seed: int, purpose: str) -> WorkerSpec:
    name = f"env[{index}]" if purpose == "train" else f"eval_env[{index}]"
    args = (lookup("simulator", kind.backend), kind, index, seed, purpose)
    return WorkerSpec(EnvWorker, args, name, config.cluster.remote_env, kind.num_cpus, kind.num_gpus)


def _policy_specs(config: Config, role: PolicyRole) -> list[WorkerSpec]:
    policy, cluster, cls = config.policy, config.cluster, lookup("policy", config.policy.type)
    channels: dict[str, int]
    if role is PolicyRole.TRAIN:
        count, remote = cluster.train_worker_num, cluster.remote_train
        cpus, gpus, channels = policy.train_num_cpus, policy.train_num_gpus, {}
    else:
        count, remote = cluster.eval_worker_num, cluster.remote_eval
        cpus, gpus, channels = policy.eval_num_cpus, policy.eval_num_gpus, _eval_channels(config)
    names = [f"{role.value}[{index}]" for index in range(count)]
    return [WorkerSpec(cls, (policy, role), name, remote, cpus, gpus, channels) for name in names]


def _in_one_process(envs: list[WorkerSpec], hosts: list[WorkerSpec]) -> tuple[list[WorkerSpec], list[WorkerSpec]]:
    """Move each env worker into the process of the eval policy that would answer it step by step."""
    chosen = SimpleRouter().select(range(len(envs)), [0] * len(hosts))
    cpus, gpus = [spec.num_cpus for spec in hosts], [spec.num_gpus for spec in hosts]
    for env, host in zip(envs, chosen, strict=True):
        cpus[host] = max(cpus[host], env.num_cpus)  # the workers of one process take turns
        gpus[host] += env.num_gpus
    inside = [
        replace(env, remote=False, num_cpus=0.0, num_gpus=0.0, host=hosts[host].name)
        for env, host in zip(envs, chosen, strict=True)
    ]
    return inside, [replace(spec, num_cpus=c, num_gpus=g) for spec, c, g in zip(hosts, cpus, gpus, strict=True)]


def env_kind(spec: WorkerSpec) -> EnvConfig:
    """Return the configuration of an env worker's env."""
    kind = spec.args[1]
    assert isinstance(kind, EnvConfig)
    return kind


def of_generation(spec: WorkerSpec, generation: int) -> WorkerSpec:
    """Describe the env worker that replaces another one; it plays episodes of its own."""
    return replace(spec, args=(*spec.args, generation))


def _env_kinds(config: Config) -> list[EnvConfig]:
    """List the configuration of each env worker of training, by env id."""
    return [kind for kind in config.env for _ in range(kind.num_workers)]


def _eval_channels(config: Config) -> dict[str, int]:
    """Return the channels beside all other calls: for new weights, and async for the requests of each env worker."""
    channels = {"weights": 1}
    if config.policy.rollout_mode == "async":
        channels |= {request_channel(env_id): 1 for env_id in range(max(len(config.env), config.num_env_workers))}
    return channels


def buffer_specs(config: Config, routes: BufferRoutes) -> list[WorkerSpec]:
    """Describe the shards of the data buffer, by the env workers whose data they store."""
    num_envs = [kind.num_envs for kind in _env_kinds(config)]
    capacity = config.buffer.capacity or config.train.max_rollout_steps
    storage = lookup("buffer", config.buffer.type)
    specs = []
    for index in range(1 + max(routes.learner_shards)):
        env_ids = routes.envs_of(index)
        args = (capacity, [num_envs[env_id] for env_id in env_ids], env_ids)
        specs.append(WorkerSpec(storage, args, f"buffer[{index}]", config.cluster.remote_storage))
    return specs
