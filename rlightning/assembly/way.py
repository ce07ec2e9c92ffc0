"""Whether data come by fragment or step by step: a pure choice, with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlightning.config import Config


@dataclass(frozen=True, slots=True)
class Way:
    """How data come.

    Attributes:
        by_fragment: Whether env workers live in the processes of eval policies, and one call makes all steps.
        reason: Why, on one line.
    """

    by_fragment: bool
    reason: str

    def __str__(self) -> str:
        return f"{'by fragment' if self.by_fragment else 'step by step'}: {self.reason}"


def choose_way(config: Config) -> Way:
    """Choose by ``cluster.placement.env_strategy``; "auto" is by fragment where env and policy allow it."""
    strategy = config.cluster.placement.env_strategy
    if strategy != "auto":
        return Way(strategy == "process-colocate", f"cluster.placement.env_strategy is {strategy}")
    reasons = [reason for applies, reason in _AGAINST if applies(config)]
    if reasons:
        return Way(False, reasons[0])
    return Way(
        True, "each env worker lives in the process of its eval policy, and one call makes all steps of an epoch"
    )


def settle_way(config: Config, way: Way) -> Config:
    """Replace "auto" by the strategy of the way that was chosen."""
    placement = config.cluster.placement
    if placement.env_strategy != "auto":
        return config
    settled = placement.model_copy(update={"env_strategy": "process-colocate" if way.by_fragment else "default"})
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"placement": settled})})


_AGAINST: tuple[tuple[Callable[[Config], bool], str], ...] = (
    (lambda config: config.engine != "syncrl", "fragments are for engine: syncrl"),
    (
        lambda config: config.policy.rollout_mode != "sync",
        "requests overlap (policy.rollout_mode: async), and in a fragment they are made one after the other",
    ),
    (
        lambda config: not (config.cluster.remote_env and config.cluster.remote_eval),
        "env workers and eval policies are not both processes of their own (cluster.remote_env, cluster.remote_eval)",
    ),
    (
        lambda config: config.cluster.eval_worker_num != config.num_env_workers,
        "in one process env workers would take turns; by fragment with as many eval policies as env workers "
        "(cluster.eval_worker_num)",
    ),
    (
        lambda config: any(kind.step_timeout_s is not None for kind in config.env),
        "a process is ended whose env hangs (env.step_timeout_s), and that must not be a policy's",
    ),
    (
        lambda config: any(kind.num_gpus for kind in config.env),
        "the envs have devices of their own (env.num_gpus)",
    ),
    (
        lambda config: any("env" in pool.components for pool in config.cluster.resource_pool.values()),
        "the envs have places of their own (cluster.resource_pool)",
    ),
)
"""What speaks against fragments where the choice is "auto", most important first."""
