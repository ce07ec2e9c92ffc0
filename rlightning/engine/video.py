"""Videos of episodes: of one on demand, and every few epochs of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlightning.config import Config, EnvConfig
from rlightning.engine.callbacks import Callback
from rlightning.env.env_worker import EnvWorker
from rlightning.env.episodes import Episode
from rlightning.errors import ConfigError, MissingDependency, RLightningError
from rlightning.registry import lookup
from rlightning.runtime import LocalFuture
from rlightning.types import BatchedData

if TYPE_CHECKING:
    from rlightning.engine.base_engine import BaseEngine

_LONGEST_VIDEO_STEPS = 10_000
_DEFAULT_FPS = 30.0
"""Steps per second of a video of an env that does not say how long a step is."""
_MOST_FPS = 50.0
"""Pictures per second; players show no more of a GIF, and few of an MP4."""


class Video(Callback):
    """Writes a video of one episode every few epochs into the folder of the run (callback "video").

    Args:
        every: Epochs between videos; the last epoch of a run has one, too.

    Raises:
        ValueError: If ``every`` is not positive.
    """

    draws = True

    def __init__(self, every: int = 50) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self._every = every

    def on_epoch(self, engine: BaseEngine, metrics: Mapping[str, float]) -> None:
        if engine.epoch % self._every == 0:
            self._record(engine)

    def on_end(self, engine: BaseEngine, result: Any) -> None:
        if engine.epoch % self._every:
            self._record(engine)

    def _record(self, engine: BaseEngine) -> None:
        if engine.recorder.folder is not None:
            path = engine.recorder.folder / "videos" / f"epoch-{engine.epoch:08d}.mp4"
            engine.load_to_act()
            with engine.policy_group.evaluating(engine.config.evaluation.seed):
                record_episode(engine, engine.config, path)


def record_episode(
    engine: BaseEngine,
    config: Config,
    path: Path,
    fps: float | None = None,
    on_frame: Callable[[int], None] = lambda _: None,
) -> Episode:
    """Play one episode with the policy of an engine and write it as a video that lasts as long as the episode.

    Args:
        engine: An engine whose eval policies have their weights.
        config: Its configuration; the first env is played.
        path: An .mp4 or .gif file.
        fps: Steps per second; None means those of the env's own time, or 30 where it does not say.
        on_frame: Called with the number of steps after each.

    Returns:
        The episode that is seen.

    Raises:
        RLightningError: If the env cannot be drawn, or the episode does not end.
    """
    import imageio.v2 as imageio

    kind = _drawable(config.env[0])
    try:
        worker = EnvWorker(lookup("simulator", kind.backend), kind, 0, config.evaluation.seed, "eval")
    except ConfigError as error:
        if "render_mode" in str(error) and "render_mode" not in config.env[0].env_kwargs:
            raise RLightningError(f"{kind.name} cannot be drawn: its constructor takes no render_mode") from error
        raise
    path.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = imageio.get_writer
    fps = fps or worker.get_meta().rate_hz or _DEFAULT_FPS
    rate, options = _frame_rate(fps, path.suffix)
    try:
        env_ret = worker.reset()
        frame = _frame(worker, kind)
        with writer(path, **options) as video:
            video.append_data(frame)
            for steps in range(1, _LONGEST_VIDEO_STEPS):
                on_frame(steps)
                responses = engine.policy_group.rollout_batch(
                    BatchedData([0], [LocalFuture(env_ret)]),
                    evaluation=True,
                    deterministic=config.evaluation.deterministic,
                )
                env_ret = worker.step(responses.items[0].result())
                episodes = worker.pop_episodes()
                if episodes:
                    return episodes[0]
                if steps * rate // fps > (steps - 1) * rate // fps:
                    video.append_data(_frame(worker, kind))
    finally:
        worker.close()
    raise RLightningError(f"the episode did not end within {_LONGEST_VIDEO_STEPS} steps: set env.max_episode_steps")


def _frame_rate(fps: float, ending: str) -> tuple[float, dict[str, Any]]:
    """Choose how many pictures a second of a video has, at most ``fps``, and say so to the writer of its format."""
    if ending == ".mp4":
        rate = fps / math.ceil(fps / _MOST_FPS)
        return rate, {"fps": rate, "macro_block_size": 2}
    # A GIF counts time in hundredths of a second.
    hundredths = math.ceil(max(100 / fps, 100 / _MOST_FPS))
    return 100 / hundredths, {"duration": 10 * hundredths, "loop": 0}


def _drawable(kind: EnvConfig) -> EnvConfig:
    """Ask Gymnasium's envs for pictures; other simulators are drawn as they are."""
    kwargs = {"render_mode": "rgb_array", **kind.env_kwargs} if kind.backend == "gymnasium" else kind.env_kwargs
    return kind.model_copy(update={"num_workers": 1, "num_envs": 1, "env_kwargs": kwargs})


def _frame(worker: EnvWorker, kind: EnvConfig) -> Any:
    try:
        frame = worker.render()
    except RLightningError:
        raise
    except (AttributeError, RuntimeError, OSError, ImportError) as error:
        raise MissingDependency(
            f"{kind.name} cannot be drawn here: {type(error).__name__}: {error}; without a screen it needs libEGL or "
            f"libOSMesa (packages libegl1 or libosmesa6), and MUJOCO_GL set to egl or osmesa"
        ) from error
    if frame is None:
        raise RLightningError(f"{kind.name} cannot be drawn: its render() gives no picture")
    return frame
