"""Evaluation of a finished or running run: whole episodes, and a video of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from rlightning.assembly.assemble import assemble
from rlightning.commands.drawing import choose_gl_backend
from rlightning.config import Config
from rlightning.configuring.changes import keep_changes, open_folder
from rlightning.device import available_gpus
from rlightning.engine.evaluation import EvalResult
from rlightning.engine.policy_spec import find_checkpoint
from rlightning.engine.video import record_episode
from rlightning.functional.statistics import bootstrap_difference, bootstrap_interval
from rlightning.observability.logs import log_to_console


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """What ``rlightning eval`` was asked.

    Attributes:
        run: Folder of the run.
        checkpoint: "best", "last", or the folder of a checkpoint.
        episodes: Episodes; None means those of the configuration.
        video: File to write one episode to.
        sampled: Sample actions.
        seed: Seed of the episodes; None means that of the configuration.
        fps: Steps per second of the video; None means real time.
        both: Evaluate most likely and sampled actions.
        against: Folder of a run whose policy plays the same episodes.
        overrides: Changes to the configuration of the run, ``key=value``.
    """

    run: Path
    checkpoint: str = "best"
    episodes: int | None = None
    video: Path | None = None
    sampled: bool = False
    seed: int | None = None
    fps: float | None = None
    both: bool = False
    against: Path | None = None
    overrides: tuple[str, ...] = ()


def evaluate_run(request: EvalRequest, console: Console) -> None:
    """Evaluate the policy of a run, print what came out, and write the video if one was asked for.

    Raises:
        CheckpointError: If there is no such run or checkpoint.
        ConfigError: If the run's configuration cannot be loaded.
    """
    run = open_folder(request.run, request.overrides)
    checkpoint = find_checkpoint(run.path, request.checkpoint)
    config = _for_evaluation(run.config, request)
    log_to_console(config.log.level)
    if request.video is not None:
        choose_gl_backend()
    with assemble(config) as engine:
        engine.resume(checkpoint)
        keep_changes(run, "eval", engine.epoch, console)
        result = engine.run().evaluation
        assert result is not None
        how = "most likely actions" if config.evaluation.deterministic else "sampled actions"
        console.print(f"checkpoint  {checkpoint.resolve().name} of {run.name}, {how}", soft_wrap=True, markup=False)
        console.print(result.describe(), highlight=False)
        if request.video is not None:
            with console.status("drawing the video ...") as status:

                def count(steps: int) -> None:
                    status.update(f"drawing the video: {steps} steps")

                episode = record_episode(engine, config, request.video, request.fps, count)
            drawn = f"video       {request.video}: return {episode.return_:.2f}, {episode.length} steps"
            console.print(drawn, soft_wrap=True, markup=False)
    if request.both:
        other = config.evaluation.model_copy(update={"deterministic": not config.evaluation.deterministic})
        _print_both(result, _evaluate(config.model_copy(update={"evaluation": other}), checkpoint), config, console)
    if request.against is not None:
        opponent = open_folder(request.against)
        checkpoint = find_checkpoint(opponent.path)
        same = config.model_copy(update={"policy": _for_evaluation(opponent.config, request).policy})
        console.print(f"against     {checkpoint.resolve().name} of {opponent.name}", soft_wrap=True, markup=False)
        _print_difference(result, _evaluate(same, checkpoint), console)


def _evaluate(config: Config, checkpoint: Path) -> EvalResult:
    with assemble(config) as engine:
        engine.resume(checkpoint)
        result = engine.run().evaluation
    assert result is not None
    return result


def _print_both(result: EvalResult, other: EvalResult, config: Config, console: Console) -> None:
    """Print the returns of the other kind of actions, and a hint if the two kinds differ."""
    likely, sampled = (result, other) if config.evaluation.deterministic else (other, result)
    first, second = ([episode.return_ for episode in one.episodes] for one in (likely, sampled))
    low, high = bootstrap_difference(first, second, np.mean)
    said = f"most likely {np.mean(first):.2f}, sampled {np.mean(second):.2f}"
    if low > 0 or high < 0:
        better = "the most likely actions are" if low > 0 else "sampling is"
        said += f"\n{better} better, by {min(abs(low), abs(high)):.2f} to {max(abs(low), abs(high)):.2f} (95 %)"
    console.print(said, soft_wrap=True, markup=False)


def _print_difference(result: EvalResult, other: EvalResult, console: Console) -> None:
    """Print the mean difference between two policies over pairs of episodes that began alike."""
    ours, theirs = ({(one.worker, one.sub_env): one.return_ for one in each.episodes} for each in (result, other))
    differences = [ours[start] - theirs[start] for start in sorted(ours.keys() & theirs.keys())]
    low, high = bootstrap_interval(differences, np.mean)
    console.print(other.describe(), highlight=False)
    within = "" if np.isnan(low) else f", within {low:.2f} to {high:.2f} (95 %)"
    verdict = "better" if low > 0 else "worse" if high < 0 else "no difference is shown"
    said = f"difference  {np.mean(differences):.2f}{within}: {verdict}; {len(differences)} pairs of equal starts"
    console.print(said, soft_wrap=True, markup=False)


def _for_evaluation(config: Config, request: EvalRequest) -> Config:
    """Change a run's configuration so that this process, on whatever machine, evaluates it."""
    asked = {
        "episodes": request.episodes,
        "seed": request.seed,
        "deterministic": False if request.sampled else None,
    }
    evaluation = config.evaluation.model_copy(update={key: value for key, value in asked.items() if value is not None})
    if request.against is not None:
        # Each episode is the first one of its sub-env, which begins from the seed with any policy.
        evaluation = evaluation.model_copy(update={"num_envs": evaluation.episodes})
    here: dict[str, Any] = dict.fromkeys(("remote_env", "remote_eval", "remote_storage", "remote_train"), False)
    here |= dict.fromkeys(("eval_worker_num", "train_worker_num", "buffer_worker_num"), 1)
    policy, gpus = config.policy, float(available_gpus())
    at_most = {name: min(getattr(policy, name), gpus) for name in ("train_num_gpus", "eval_num_gpus")}
    one_each = {"num_workers": 1, "num_envs": 1}
    return config.model_copy(
        update={
            "engine": "eval",
            "callbacks": [],
            "evaluation": evaluation,
            "policy": policy.model_copy(update={**at_most, "init_from": None}),
            "cluster": config.cluster.model_copy(update=here),
            # Training envs are just asked for their spaces.
            "env": [kind.model_copy(update={**one_each, "num_gpus": min(kind.num_gpus, gpus)}) for kind in config.env],
        }
    )
