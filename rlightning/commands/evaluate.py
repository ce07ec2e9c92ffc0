"""Evaluation of a finished or running run: whole episodes, and a video of one."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rlightning.assembly.assemble import assemble
from rlightning.config import Config
from rlightning.configuring.changes import keep_changes, open_folder
from rlightning.device import available_gpus
from rlightning.engine.recorder import CheckpointFolder
from rlightning.engine.video import record_episode
from rlightning.observability.logs import log_to_console

_LONGEST_PROBE_S = 20.0
_GL_BACKENDS = {"egl": "EGL", "osmesa": "OSMesa"}
"""Values of MUJOCO_GL that need no screen, the quicker one first, and the library of each."""


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
        overrides: Changes to the configuration of the run, ``key=value``.
    """

    run: Path
    checkpoint: str = "best"
    episodes: int | None = None
    video: Path | None = None
    sampled: bool = False
    seed: int | None = None
    fps: float | None = None
    overrides: tuple[str, ...] = ()


def evaluate_run(request: EvalRequest, console: Console) -> None:
    """Evaluate the policy of a run, print what came out, and write the video if one was asked for.

    Raises:
        CheckpointError: If there is no such run or checkpoint.
        ConfigError: If the run's configuration cannot be loaded.
    """
    run = open_folder(request.run, request.overrides)
    checkpoint = CheckpointFolder(run.checkpoints).find(request.checkpoint)
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


def choose_gl_backend() -> None:
    """Set MUJOCO_GL where it is unset and there is no screen, so that MuJoCo draws without one.

    A backend is tried in a process of its own, since the choice cannot be changed in this one afterwards.
    """
    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if not sys.platform.startswith("linux") or has_screen or "MUJOCO_GL" in os.environ:
        return
    for backend, library in _GL_BACKENDS.items():
        if ctypes.util.find_library(library) and _can_draw(backend):
            os.environ["MUJOCO_GL"] = backend
            return


def _can_draw(backend: str) -> bool:
    program = "import mujoco; mujoco.GLContext(8, 8).make_current()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "MUJOCO_GL": backend},
            capture_output=True,
            timeout=_LONGEST_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _for_evaluation(config: Config, request: EvalRequest) -> Config:
    """Change a run's configuration so that this process, on whatever machine, evaluates it."""
    asked = {
        "episodes": request.episodes,
        "seed": request.seed,
        "deterministic": False if request.sampled else None,
    }
    evaluation = config.evaluation.model_copy(update={key: value for key, value in asked.items() if value is not None})
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
