"""What a user adds to the course of a run: called at its events, in the process and thread of the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rlightning.errors import CallbackError, nearest_name
from rlightning.observability.metrics import USER_PREFIX, catalogue, undescribed

if TYPE_CHECKING:
    from rlightning.engine.base_engine import BaseEngine, RunResult

logger = logging.getLogger(__name__)


class Callback:
    """Methods that an engine calls; each does nothing unless a subclass writes it.

    They may call ``engine.log(metrics)``, ``engine.stop(reason)`` and ``engine.save()``, and read what the engine has.
    An exception ends the run: with a checkpoint, and with the exception as the cause of a ``CallbackError``.
    """

    draws: ClassVar[bool] = False
    """Whether pictures of envs are drawn, for which MuJoCo is prepared before the first env is built."""

    def on_start(self, engine: BaseEngine) -> None:
        """Called before the first epoch of this process, when the envs are reset and the weights are in force."""

    def on_epoch(self, engine: BaseEngine, metrics: Mapping[str, float]) -> None:
        """Called after each epoch, when its metrics are written."""

    def on_evaluation(self, engine: BaseEngine, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation, when its metrics are written."""

    def on_save(self, engine: BaseEngine, checkpoint: Path | None) -> None:
        """Called after each checkpoint, with its folder; with None where nothing keeps checkpoints."""

    def on_end(self, engine: BaseEngine, result: RunResult) -> None:
        """Called when ``run`` has come to its end, also after Ctrl-C, but not after a failure."""

    def get_state(self) -> dict[str, Any]:
        """Return what a resumed run needs: numbers, texts, arrays, and dicts and lists of them."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what ``get_state`` returned."""


class StopAt(Callback):
    """Ends the run when a metric reaches a value, after a last evaluation and a checkpoint (callback "stop_at").

    Args:
        at_least: The value.
        metric: Name of the metric, such as "eval/return_mean", "eval/success_rate" or "episode/return_mean_100".
        times: How often in a row the metric has to reach the value.

    Raises:
        ValueError: If ``times`` is not positive, or there is no such metric.
    """

    def __init__(self, at_least: float, metric: str = "episode/return_mean_100", times: int = 1) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        if undescribed([metric]):
            near = nearest_name(metric, [known.name for known in catalogue()])
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"no metric is called {metric!r}; your own are named {USER_PREFIX}... or registered{hint}")
        self._at_least, self._metric, self._times = float(at_least), metric, times
        self._reached = 0

    def on_epoch(self, engine: BaseEngine, metrics: Mapping[str, float]) -> None:
        if self._metric not in metrics:
            return
        self._reached = self._reached + 1 if metrics[self._metric] >= self._at_least else 0
        if self._reached >= self._times:
            engine.stop(f"{self._metric} is {metrics[self._metric]:.4g}, at least {self._at_least:.4g}")

    on_evaluation = on_epoch

    def get_state(self) -> dict[str, Any]:
        return {"reached": self._reached}

    def set_state(self, state: dict[str, Any]) -> None:
        self._reached = state["reached"]


class Callbacks:
    """The callbacks of a run, in order.

    Args:
        callbacks: The callbacks.
        engine: What they are called with.
        keep: Saves a checkpoint without calling them; returns its folder.
    """

    def __init__(self, callbacks: Sequence[Callback], engine: BaseEngine, keep: Callable[[], Path | None]) -> None:
        self._callbacks, self._engine, self._keep = list(callbacks), engine, keep

    def call(self, event: str, *args: Any) -> None:
        """Call a method of each.

        Raises:
            CallbackError: If one fails; a checkpoint is saved before.
        """
        for callback in self._callbacks:
            try:
                getattr(callback, event)(self._engine, *args)
            except Exception as error:
                where = f"{type(callback).__name__}.{event} failed after epoch {self._engine.epoch}"
                kept = self._save_after_failure()
                raise CallbackError(f"{where}, with {kept}: {type(error).__name__}: {error}") from error

    def _save_after_failure(self) -> str:
        """Save a checkpoint if that is possible: what a callback raised is what the caller must see."""
        try:
            folder = self._keep()
        except Exception as error:
            logger.warning("no checkpoint could be saved: %s: %s", type(error).__name__, error)
            folder = None
        return "no checkpoint" if folder is None else f"the checkpoint {folder.name}"

    def get_state(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the class and state of each."""
        return [(type(callback).__name__, callback.get_state()) for callback in self._callbacks]

    def set_state(self, states: Sequence[Sequence[Any]]) -> None:
        """Restore the state of each, by its class and its index among those of its class; others begin anew."""
        left = [list(state) for state in states]
        for callback in self._callbacks:
            found = next((state for state in left if state[0] == type(callback).__name__), None)
            if found is not None:
                left.remove(found)
                callback.set_state(found[1])
