"""What the options allow and this version does not do yet, or what does not go together.

Each entry is refused by name before anything starts. An entry is deleted when its feature arrives.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlightning.config import Config
from rlightning.errors import Problem


@dataclass(frozen=True, slots=True)
class _Rule:
    """An option, when it is refused, and why."""

    path: str
    refused: Callable[[Config], bool]
    message: str


def _shares_processes(config: Config) -> bool:
    return config.cluster.placement.env_strategy == "process-colocate"


def _shards(config: Config) -> int:
    """Count the shards that are asked for; "auto" never asks for too many."""
    return 1 if config.cluster.buffer_worker_num == "auto" else config.cluster.buffer_worker_num


NOT_YET = (
    _Rule(
        "buffer.auto_truncate_episode",
        lambda config: not config.buffer.auto_truncate_episode,
        "a block is always closed when the learner takes it; keeping open episodes is not in this version; use true",
    ),
)
"""What is asked for and not in this version."""

PLANNED = {
    ("engine", "asyncrl"): "the asynchronous engine is not in this version; use syncrl",
    ("env.backend", "pettingzoo"): "envs of PettingZoo, with several agents each, are not in this version",
}
"""Option and value -> why it is refused; they are no misspellings."""

CONTRADICTIONS = (
    _Rule(
        "cluster.placement.env_strategy",
        lambda config: (
            config.cluster.placement.env_strategy not in ("default", "auto")
            and config.cluster.remote_env != config.cluster.remote_eval
        ),
        "env workers and eval policies must both be processes of their own, or neither; set cluster.remote_env and "
        "cluster.remote_eval alike",
    ),
    _Rule(
        "cluster.placement.strategy",
        lambda config: config.cluster.is_colocated and config.cluster.placement.strategy == "disaggregate",
        "colocated policies share their place; use colocate, or set cluster.is_colocated to false",
    ),
    _Rule(
        "cluster.placement.mode",
        lambda config: config.cluster.placement.mode == "manual" and not config.cluster.resource_pool,
        "manual placement is by pools; add cluster.resource_pool, or use auto",
    ),
    _Rule(
        "cluster.resource_pool",
        lambda config: config.cluster.placement.mode == "auto" and bool(config.cluster.resource_pool),
        "pools are for manual placement; set cluster.placement.mode to manual, or remove them",
    ),
    _Rule(
        "policy.weight_buffer.buffer_strategy",
        lambda config: config.cluster.is_colocated and config.policy.weight_buffer.buffer_strategy != "None",
        'colocated policies hand their weights over directly; use "None", or set cluster.is_colocated to false',
    ),
    _Rule(
        "policy.weight_buffer.transport",
        lambda config: config.cluster.is_colocated and config.policy.weight_buffer.transport == "collective",
        "colocated policies hand their weights over by a handle of memory; use auto",
    ),
    _Rule(
        "policy.weight_buffer.transport",
        lambda config: (
            (config.policy.weight_buffer.transport, config.policy.weight_buffer.buffer_strategy)
            == ("collective", "Sharded")
        ),
        '"Sharded" sends another part to each policy, which is no broadcast; use "object_store"',
    ),
    _Rule(
        "cluster.eval_worker_num",
        lambda config: config.cluster.is_colocated and config.cluster.eval_worker_num > config.cluster.train_worker_num,
        "colocated policies are pairs: use at most cluster.train_worker_num",
    ),
    _Rule(
        "cluster.buffer_worker_num",
        lambda config: _shards(config) > config.cluster.train_worker_num,
        "more than cluster.train_worker_num: a shard gives its data to one train policy or more; lower it",
    ),
    _Rule(
        "cluster.buffer_worker_num",
        lambda config: _shards(config) > config.num_env_workers,
        "more than there are env workers: some shards would stay empty; lower it, or raise env.num_workers",
    ),
    _Rule(
        "cluster.eval_worker_num",
        lambda config: _shares_processes(config) and config.cluster.eval_worker_num > config.num_env_workers,
        "more than there are env workers: some eval policies would have none in their process; lower it, or raise "
        "env.num_workers",
    ),
    _Rule(
        "engine",
        lambda config: _shares_processes(config) and config.engine == "rsl",
        "env workers in the processes of eval policies collect by fragment, which syncrl does",
    ),
    _Rule(
        "policy.rollout_mode",
        lambda config: _shares_processes(config) and config.policy.rollout_mode == "async",
        "a fragment is collected step by step in one process; use sync",
    ),
    _Rule(
        "buffer.capacity",
        lambda config: (config.buffer.capacity or config.train.max_rollout_steps) < config.train.max_rollout_steps,
        "less than train.max_rollout_steps: the block would overflow; raise it or leave it null",
    ),
    _Rule(
        "log.name",
        lambda config: Path(config.log.name).name != config.log.name or config.log.name == "..",
        "is the name of a folder and no path; train.save_dir says where that is made",
    ),
    _Rule(
        "log.backend",
        lambda config: "wandb" in config.log.backend and importlib.util.find_spec("wandb") is None,
        "wandb is not installed; get it with: pip install 'rlightning[wandb]'",
    ),
)
"""Options that do not go together, or not with this machine."""


def refused(rules: Sequence[_Rule], config: Config) -> list[Problem]:
    """List what some rules refuse."""
    return [Problem(rule.path, rule.message) for rule in rules if rule.refused(config)]
