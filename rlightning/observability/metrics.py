"""Every metric by name, with its unit and its meaning. The metrics reference is generated from this catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

USER_PREFIX = "user/"
"""Names under this prefix are free."""

_OPEN_ENDS = ("<task>", "<term>", "<name>")
"""Placeholders, at the end of a metric's name, for the name of a task or of a number that an env reports."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The meaning of a logged number.

    Attributes:
        name: Section and name, such as ``train/policy_loss``.
        unit: Unit; empty for a number without one.
        meaning: One sentence.
    """

    name: str
    unit: str
    meaning: str


_CATALOGUE: dict[str, Metric] = {}


def register_metric(name: str, unit: str, meaning: str) -> Metric:
    """Add a metric to the catalogue.

    Raises:
        ValueError: If the name is described differently already.
    """
    metric = Metric(name, unit, meaning)
    if _CATALOGUE.setdefault(name, metric) != metric:
        raise ValueError(f"metric {name!r} is described already: {_CATALOGUE[name].meaning}")
    return metric


def catalogue() -> list[Metric]:
    """List all described metrics in the order of their names."""
    return sorted(_CATALOGUE.values(), key=lambda metric: metric.name)


def undescribed(names: Iterable[str]) -> list[str]:
    """List the names that neither are described nor lie under ``user/``.

    >>> undescribed(["train/entropy", "user/height", "train/entrpy"])
    ['train/entrpy']
    """
    return [name for name in names if not _is_described(name) and not name.startswith(USER_PREFIX)]


def _is_described(name: str) -> bool:
    """Whether a name is in the catalogue, as it is or with a placeholder at its end."""
    sections = [name[:i] for i, letter in enumerate(name) if letter == "/"]  # a task's name may have one too
    return name in _CATALOGUE or any(f"{part}/{end}" in _CATALOGUE for part in sections for end in _OPEN_ENDS)


for _name, _unit, _meaning in (
    ("episode/return_mean", "reward", "Mean return of the training episodes that ended in this epoch."),
    ("episode/return_mean_100", "reward", "Mean return of the last 100 training episodes, or of all if fewer."),
    ("episode/return_mean/<task>", "reward", "As episode/return_mean, for one task of a multi-task run."),
    ("episode/length_mean", "steps", "Mean length of the training episodes that ended in this epoch."),
    (
        "episode/success_rate",
        "",
        "Mean of is_success at the end of the training episodes that ended in this epoch.",
    ),
    ("episode/success_rate/<task>", "", "As episode/success_rate, for one task of a multi-task run."),
    ("episode/info/<name>", "", "Mean of a number of env.logged_info at the end of the same episodes."),
    ("eval/success_rate", "", "As episode/success_rate, for the episodes of an evaluation."),
    ("eval/success_rate/<task>", "", "As eval/success_rate, for one task of a multi-task run."),
    ("eval/info/<name>", "", "As episode/info/<name>, for the episodes of an evaluation."),
    ("episode/count", "episodes", "Training episodes that ended in this epoch."),
    ("env/<term>", "", "Mean over the steps of this epoch of a number of the env, such as a term of MuJoCo's reward."),
    ("eval/return_mean", "reward", "Mean return of the episodes of an evaluation."),
    ("eval/return_mean/<task>", "reward", "As eval/return_mean, for one task of a multi-task run."),
    ("eval/return_std", "reward", "Standard deviation of the returns of an evaluation."),
    ("eval/length_mean", "steps", "Mean length of the episodes of an evaluation."),
    ("eval/episodes", "episodes", "Episodes of an evaluation."),
    ("faults/died", "faults", "Env workers whose process ended, since the start; there is none before the first."),
    (
        "faults/raised",
        "faults",
        "Env workers whose env raised, or returned a wrong type or shape; as faults/died.",
    ),
    ("faults/timed_out", "faults", "Env workers with a call longer than env.step_timeout_s; as faults/died."),
    ("faults/not_finite", "faults", "Env workers whose env returned a number that is not finite; as faults/died."),
    (
        "dropped/died",
        "steps",
        "Env steps of fragments that were dropped because the process of their env worker ended, since the start; "
        "there is none before the first. All that came in is progress/env_steps and the metrics dropped/ together.",
    ),
    ("dropped/raised", "steps", "Env steps of fragments that were dropped because their env raised; as dropped/died."),
    ("dropped/timed_out", "steps", "Env steps of fragments that were dropped for a call that hung; as dropped/died."),
    ("dropped/not_finite", "steps", "Env steps of fragments dropped for a number that is not finite; as dropped/died."),
    (
        "dropped/beside",
        "steps",
        "Env steps of fragments that were dropped because they shared a request or a call with an env that failed; as "
        "dropped/died.",
    ),
    ("time/env_steps_per_s", "steps/s", "Env steps of this epoch, all sub-envs together, per second of the epoch."),
    ("time/collect_s", "s", "Time of this epoch in which envs were stepped and the policy acted."),
    ("time/learn_s", "s", "Time of this epoch in which the learner took the data and trained."),
    ("time/publish_s", "s", "Time of this epoch in which new weights went to the eval policies."),
    ("time/evaluate_s", "s", "Time of this epoch spent in evaluation."),
    ("time/total_s", "s", "Time of this epoch: collect, learn and publish."),
    ("progress/epoch", "epochs", "Finished epochs."),
    ("progress/env_steps", "steps", "Env steps since the start, all sub-envs together; the x axis of all metrics."),
    ("policy/version", "updates", "Version of the weights after this epoch."),
    ("policy/version_lag", "updates", "Versions by which the oldest data of this epoch were behind the learner."),
    ("train/policy_loss", "", "Mean of the policy's loss over the gradient steps of this epoch."),
    ("train/value_loss", "", "Mean of the value function's loss over the gradient steps of this epoch."),
    ("train/entropy", "nats", "Mean entropy of the policy's distributions."),
    ("train/approx_kl", "nats", "Estimate of the KL divergence between the policies before and after learning."),
    ("train/clip_fraction", "", "Fraction of the samples whose probability ratio was outside of the clip range."),
    (
        "train/explained_variance",
        "",
        "1 - Var[return - value] / Var[return]; 1 is perfect, 0 that of a constant.",
    ),
    ("train/lr", "", "Learning rate of this epoch."),
    ("train/grad_norm", "", "Mean L2 norm of the gradient before clipping."),
    ("train/std", "", "Mean standard deviation of a Gaussian policy, in the units of the action before any mapping."),
    ("train/gradient_steps", "steps", "Gradient steps of this epoch; fewer than planned after a KL stop."),
    ("train/rows", "transitions", "Transitions that the learners used in this epoch, all learners together."),
    ("train/dropped_rows", "transitions", "Transitions left out to make the shares of several learners even."),
    ("train/padded_rows", "transitions", "Transitions used twice to make the shares of several learners even."),
):
    register_metric(_name, _unit, _meaning)
