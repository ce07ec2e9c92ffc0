"""From a configuration to what each worker of a run is; starts nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rlightning.assembly.way import choose_way
from rlightning.buffer.assignment import BufferRoutes, routes_in_order
from rlightning.buffer.shard import BufferShard
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
    """List the workers of a run, with blocks of neighbouring env workers for each shard; starts nothing."""
    # "auto" is a shard per node with train policies: without a plan of several nodes, one.
    shards = 1 if config.cluster.buffer_worker_num == "auto" else config.cluster.buffer_worker_num
    return WorkerPlan(
        env=_train_env_specs(config),
        eval_env=_eval_env_specs(config),
        train=_policy_specs(config, PolicyRole.TRAIN),
        eval=_policy_specs(config, PolicyRole.EVAL),
        buffer=buffer_specs(config, routes_in_order(config.num_env_workers, shards, config.cluster.train_worker_num)),
    )


def shares_processes(config: Config) -> bool:
    """Return whether env workers live in the processes of eval policies, so that data are collected by fragment."""
    return choose_way(config).by_fragment


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


def env_kind(spec: WorkerSpec) -> EnvConfig:
    """Return the configuration of an env worker's env."""
    kind = spec.args[1]
    assert isinstance(kind, EnvConfig)
    return kind


def of_generation(spec: WorkerSpec, generation: int) -> WorkerSpec:
    """Describe the env worker that replaces another one; it plays episodes of its own."""
    return replace(spec, args=(*spec.args, generation))


def host_of(config: Config, env_id: int) -> int:
    """Return the index of the eval policy in whose process an env worker lives: it would answer it step by step."""
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
    """Return the channels beside all other calls: for new weights, and async for the requests of each env worker."""
    channels = {"weights": 1}
    if config.policy.rollout_mode == "async":
        workers = max(len(config.env), sum(kind.num_workers for kind in config.env))
        channels |= {request_channel(env_id): 1 for env_id in range(workers)}
    return channels


def buffer_specs(config: Config, routes: BufferRoutes) -> list[WorkerSpec]:
    """Describe the shards of the data buffer, by the env workers whose data they store."""
    num_envs = [kind.num_envs for kind in _env_kinds(config)]
    capacity = config.buffer.capacity or config.train.max_rollout_steps
    storage = lookup("buffer", config.buffer.type)
    specs = []
    for index in range(1 + max(routes.learner_shards)):
        env_ids = routes.envs_of(index)
        args = (storage, capacity, [num_envs[env_id] for env_id in env_ids], env_ids)
        specs.append(WorkerSpec(BufferShard, args, f"buffer[{index}]", config.cluster.remote_storage))
    return specs
