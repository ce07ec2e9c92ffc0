"""How good a policy is: whole episodes on envs of their own, without touching training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlightning.buffer.data_buffer import NullBuffer
from rlightning.collect.stepwise import StepwiseCollector
from rlightning.config import EvalConfig
from rlightning.env.env_group import EnvGroup
from rlightning.env.episodes import SUCCESS, Episode
from rlightning.env.faults import FaultCounts
from rlightning.functional.statistics import bootstrap_interval
from rlightning.observability.timer import Span
from rlightning.policy.policy_group import PolicyGroup

_STEPS_BETWEEN_COUNTS = 16
"""Steps between two looks at which episodes have ended; looking costs a call per worker."""

_INFO = "eval/info/"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The episodes of one evaluation.

    Attributes:
        episodes: In the order in which they ended.
    """

    episodes: tuple[Episode, ...]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the group ``eval/``; tasks get their own if there are several."""
        returns = [episode.return_ for episode in self.episodes]
        found = {
            "eval/return_mean": float(np.mean(returns)),
            "eval/return_std": float(np.std(returns)),
            "eval/length_mean": float(np.mean([episode.length for episode in self.episodes])),
            "eval/episodes": float(len(returns)),
        }
        return found | returns_by_task(self.episodes, "eval/return_mean") | info_means(self.episodes, "eval")

    def describe(self) -> str:
        """Return a summary of a few lines.

        >>> print(EvalResult((Episode(1.0, 3, False, "reach", 0, 0), Episode(2.0, 5, False, "reach", 0, 1))).describe())
        episodes    2
        return      1.50 ± 0.50 (mean and std)
                    1.00 to 2.00
        length      4.0 steps
        """
        metrics, returns = self.metrics(), [episode.return_ for episode in self.episodes]
        low, high = bootstrap_interval(returns, np.mean)
        within = "" if np.isnan(low) else f", the mean within {low:.2f} to {high:.2f} (95 %)"
        success = metrics.get("eval/success_rate")
        named = {name.removeprefix(_INFO): value for name, value in metrics.items() if name.startswith(_INFO)}
        return "\n".join(
            (
                f"episodes    {len(returns)}",
                f"return      {metrics['eval/return_mean']:.2f} ± {metrics['eval/return_std']:.2f} (mean and std)",
                f"            {min(returns):.2f} to {max(returns):.2f}{within}",
                f"length      {metrics['eval/length_mean']:.1f} steps",
                *([] if success is None else [f"success     {success:.0%} of the episodes"]),
                *(f"{name:<11} {value:.4g}" for name, value in named.items()),
            )
        )


def returns_by_task(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Return the mean return of each task as ``prefix/task``; nothing if there is only one task."""
    tasks = sorted({episode.task for episode in episodes})
    if len(tasks) < 2:
        return {}
    return {
        f"{prefix}/{task}": float(np.mean([episode.return_ for episode in episodes if episode.task == task]))
        for task in tasks
    }


def info_means(episodes: Sequence[Episode], section: str) -> dict[str, float]:
    """Return the means of what episodes logged of ``info``: ``section/info/<name>``, and ``section/success_rate``.

    >>> info_means([Episode(0.0, 1, False, "a", 0, 0, {"is_success": 1.0}), Episode(0.0, 1, True, "a", 0, 0)], "eval")
    {'eval/success_rate': 1.0}
    """
    means = {}
    for name in sorted({name for episode in episodes for name in episode.info}):
        metric = f"{section}/success_rate" if name == SUCCESS else f"{section}/info/{name}"
        reporting = [episode for episode in episodes if name in episode.info]
        tasks = sorted({episode.task for episode in reporting}) if name == SUCCESS else []
        means[metric] = float(np.mean([episode.info[name] for episode in reporting]))
        for task in tasks if len(tasks) > 1 else ():
            means[f"{metric}/{task}"] = float(np.mean([each.info[name] for each in reporting if each.task == task]))
    return means


class Evaluator:
    """Runs a given number of whole episodes per evaluation.

    Each sub-env gets its number of episodes in advance. Were the first ones to end counted instead, short episodes
    would be counted more often than long ones.
    """

    def __init__(
        self,
        env_group: EnvGroup,
        policy_group: PolicyGroup,
        config: EvalConfig,
        max_steps: int | None,
        *,
        call_timeout_s: float | None = None,
    ) -> None:
        """Put envs of their own beside the policies that act.

        Args:
            env_group: Envs that training does not use.
            policy_group: Its eval policies act.
            config: How to evaluate.
            max_steps: Steps after which an episode is cut and counts as truncated; None is no limit.
            call_timeout_s: Seconds that one call on a worker may take; None is no limit.
        """
        self._envs, self._policies, self._config, self._max_steps = env_group, policy_group, config, max_steps
        self._collector = StepwiseCollector(
            env_group, policy_group, NullBuffer(), call_timeout_s, evaluation=True, deterministic=config.deterministic
        )

    def run(self, is_stopped: Callable[[], bool] = lambda: False) -> EvalResult | None:
        """Evaluate; equal weights give equal results.

        Args:
            is_stopped: Asked every 16 steps whether to break off.

        Returns:
            The episodes; None if the evaluation was broken off.

        Raises:
            WorkerError: If a policy failed, or an env that was replaced as often as it may be.
        """
        with self._policies.evaluating(self._config.seed):
            return self._run(is_stopped)

    def _run(self, is_stopped: Callable[[], bool]) -> EvalResult | None:
        self._envs.pop_episodes()
        quotas = dict(zip(self._envs.sub_envs, share_out(self._config.episodes, self._envs.num_envs), strict=True))
        counted: list[Episode] = []
        self._collector.reset(reseed=True)
        steps, number_cut = 0, 0
        cut: set[tuple[int, int]] = set()  # sub-envs in the midst of what was cut, until all envs are reset
        while waited_for := {sub_env for sub_env, quota in quotas.items() if quota}:
            if is_stopped():
                return None
            if waited_for <= cut:
                self._collector.reset()
                cut = set()
            # An env that is replaced starts new episodes, so that broken ones are not counted.
            self._collector.collect(self._steps_to_look(steps))
            steps += self._steps_to_look(steps)
            # Before the cut, since a sub-env that was cut before may have ended its episode meanwhile.
            ended = [one for one in self._envs.pop_episodes() if (one.worker, one.sub_env) not in cut]
            if self._max_steps is not None and steps >= self._max_steps:
                overlong = set(self._envs.cut_episodes(self._max_steps)) - cut
                ended += [one for one in self._envs.pop_episodes() if (one.worker, one.sub_env) in overlong]
                cut |= overlong
                number_cut += len(overlong & waited_for)
            for episode in ended:
                if quotas[episode.worker, episode.sub_env]:
                    quotas[episode.worker, episode.sub_env] -= 1
                    counted.append(episode)
        if number_cut:
            logger.warning(
                "%d of %d evaluation episodes did not end within train.max_eval_rollout_steps=%d steps and count as "
                "truncated",
                number_cut,
                len(counted),
                self._max_steps,
            )
        return EvalResult(tuple(counted))

    def _steps_to_look(self, steps: int) -> int:
        """Return the steps until the next look: the usual number, and never beyond the limit of the first episodes."""
        if self._max_steps is None or steps >= self._max_steps:
            return _STEPS_BETWEEN_COUNTS
        return min(_STEPS_BETWEEN_COUNTS, self._max_steps - steps)

    @property
    def faults(self) -> FaultCounts:
        """What happened to the envs so far."""
        return self._envs.faults

    def record_spans(self) -> None:
        """Record at the env workers, from now on, when they do what."""
        self._envs.record_spans()

    def take_spans(self) -> dict[str, list[Span]]:
        """Return what the env workers recorded since the last call, by their names."""
        return self._envs.take_spans()

    def close(self) -> None:
        """Close the envs."""
        self._envs.close()


def share_out(total: int, count: int) -> list[int]:
    """Split a number of episodes over sub-envs as evenly as possible.

    >>> share_out(10, 4)
    [3, 3, 2, 2]
    """
    whole, rest = divmod(total, count)
    return [whole + (index < rest) for index in range(count)]


def eval_env_counts(config: EvalConfig, kinds: Sequence[object]) -> list[int]:
    """Return how many sub-envs each kind of env gets: never more than there are episodes.

    >>> eval_env_counts(EvalConfig(episodes=5, num_envs=10), ["one kind"])
    [5]
    """
    return [max(1, count) for count in share_out(min(config.num_envs, config.episodes), len(kinds))]
