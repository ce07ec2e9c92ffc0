"""What all training loops share: when to publish, evaluate, log and save."""

from __future__ import annotations

import gc
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlightning.buffer.data_buffer import DataBuffer
from rlightning.checkpoint import load_state
from rlightning.collect.collector import Collector
from rlightning.config import Config
from rlightning.engine.callbacks import Callback, Callbacks
from rlightning.engine.evaluation import EvalResult, Evaluator, info_means, returns_by_task
from rlightning.engine.interrupt import Interrupt
from rlightning.engine.policy_spec import policy_spec
from rlightning.engine.recorder import Recorder, SilentRecorder
from rlightning.env.env_group import EnvGroup
from rlightning.errors import (
    CheckpointError,
    ConfigError,
    ProtocolError,
    RLightningError,
    WeightSyncError,
    WorkerError,
)
from rlightning.functional.schedules import anneal
from rlightning.observability.timer import Span
from rlightning.policy.policy_group import PolicyGroup

logger = logging.getLogger(__name__)

RETURN_WINDOW = 100
"""Latest training episodes that ``episode/return_mean_100`` averages over."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run came to.

    Attributes:
        epochs: Finished epochs.
        env_steps: Transitions collected.
        return_mean: Mean return of the latest 100 training episodes; NaN before the first.
        evaluation: The last evaluation; None if there was none.
        checkpoint: The last checkpoint; None where nothing keeps them.
        stopped: Why a callback ended the run; empty if none did.
    """

    epochs: int
    env_steps: int
    return_mean: float
    evaluation: EvalResult | None
    checkpoint: Path | None
    stopped: str = ""


class BaseEngine(ABC):
    """Runs epochs, and now and then evaluates and saves.

    A subclass says what an epoch is. ``run`` may be called once.
    """

    def __init__(
        self,
        config: Config,
        collector: Collector,
        policy_group: PolicyGroup,
        buffer: DataBuffer,
        *,
        evaluator: Evaluator | None = None,
        recorder: Recorder | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Put the parts together.

        Args:
            config: The whole configuration.
            collector: Brings the data of the envs to train on.
            policy_group: Initialised policies.
            buffer: Where collected data go.
            evaluator: Evaluates; None leaves evaluations out.
            recorder: Keeps metrics and checkpoints; None keeps nothing.
            callbacks: Called at the events of the run.
        """
        self.config = config
        self.collector, self.policy_group, self.buffer = collector, policy_group, buffer
        self.evaluator = evaluator
        self.recorder: Recorder = recorder if recorder is not None else SilentRecorder()
        self.epoch = 0
        self.env_steps = 0
        self._timer = collector.timer
        self._returns: deque[float] = deque(maxlen=RETURN_WINDOW)
        self._best = float("-inf")
        self._evaluation: EvalResult | None = None
        self._checkpoint: Path | None = None
        self._closed = False
        self._pushes = 0
        self._interrupt = Interrupt()
        self._callbacks = Callbacks(callbacks, self, self._keep)
        self._stopped = ""
        self._spec = policy_spec(config, collector.env_group.env_meta)
        self._saved_at = time.monotonic()

    @property
    def env_group(self) -> EnvGroup:
        """The envs to train on."""
        return self.collector.env_group

    def run(self) -> RunResult:
        """Run to ``train.max_epochs``.

        Raises:
            KeyboardInterrupt: After Ctrl-C, when the epoch is finished and saved.
        """
        train = self.config.train
        saved = self.epoch
        self._saved_at = time.monotonic()
        with self._interrupt as interrupt:
            if self.config.log.trace:
                self.record_spans()
            self.start()
            while self.epoch < train.max_epochs and not interrupt.requested and not self._stopped:
                # What is trained is logged and saved first: an evaluation may fail, or be interrupted.
                self.run_epoch()
                last = self.epoch == train.max_epochs or bool(self._stopped)
                if _due(self.epoch, train.save_interval, last) or self._is_save_late():
                    self.save(best=self.evaluator is None and self._is_best(self.return_mean))
                    saved = self.epoch
                if self.evaluator is not None and _due(self.epoch, train.eval_interval, last):
                    scores = self.evaluate()
                    if scores and self._is_best(scores["eval/return_mean"]):
                        self.save(best=True)
                        saved = self.epoch
                if self.config.log.trace:
                    self.recorder.trace(self.take_spans())
            if (interrupt.requested or self._stopped) and saved < self.epoch:
                self.save()
        if self._stopped:
            logger.info("the run ends after epoch %d: %s", self.epoch, self._stopped)
        result = RunResult(
            self.epoch, self.env_steps, self.return_mean, self._evaluation, self._checkpoint, self._stopped
        )
        self._callbacks.call("on_end", result)
        if interrupt.requested:
            raise KeyboardInterrupt
        return result

    def run_epoch(self) -> dict[str, float]:
        """Collect, learn and publish once, and write the metrics.

        Returns:
            The metrics of the epoch.
        """
        metrics = self._run_epoch()
        self.log(metrics)
        self._callbacks.call("on_epoch", metrics)
        return metrics

    @abstractmethod
    def _run_epoch(self) -> dict[str, float]:
        """Collect, learn and publish once; return the metrics of the epoch."""

    def log(self, metrics: Mapping[str, float]) -> None:
        """Write metrics of the current epoch, such as those of a callback or a loop of your own.

        Args:
            metrics: Numbers by name, such as ``{"user/slip": 0.1}``; without any, nothing is written.

        Raises:
            ProtocolError: If a value is no number.
        """
        if metrics:
            progress = {"progress/epoch": float(self.epoch), "progress/env_steps": float(self.env_steps)}
            self.recorder.log(
                self.epoch, self.env_steps, {**progress, **numbers(metrics, "engine.log was called with")}
            )

    def stop(self, reason: str) -> None:
        """End ``run`` after this epoch, with a last evaluation and a checkpoint.

        Args:
            reason: What is said of it.
        """
        self._stopped = self._stopped or reason

    def start(self) -> None:
        """Bring the initial weights to the eval policies and reset the envs; a resumed run has both already."""
        if not self.collector.is_reset:
            self.publish()
            self.collector.reset()
        self._callbacks.call("on_start")
        # What imports and building left behind stays to the end; looking through it for cycles again and again takes
        # some per cent of a small run's time.
        gc.freeze()

    def load_to_act(self) -> None:
        """Move what acts to its device, and what only learns to host memory, with ``cluster.enable_offload``."""
        if self.config.cluster.enable_offload:
            self.policy_group.offload_model_param_and_grad()
            self.policy_group.reload_eval_model()

    def load_to_learn(self) -> None:
        """Move what learns to its device, and what only acts to host memory, with ``cluster.enable_offload``."""
        if self.config.cluster.enable_offload:
            self.policy_group.offload_eval_model()
            self.policy_group.reload_model_param_and_grad()

    def publish(self) -> int:
        """Bring the learner's weights to the eval policies.

        Returns:
            The version in force.
        """
        version = self.policy_group.sync_weights()
        self.policy_group.wait_for_eval_weight_update(self.config.cluster.call_timeout_s)
        self._pushes += 1
        buffer = self.config.policy.weight_buffer
        if buffer.verify_interval and self._pushes % buffer.verify_interval == 0:
            self._verify(version, raises=buffer.ends_on_mismatch)
        return version

    def _verify(self, version: int, *, raises: bool) -> None:
        if not self.policy_group.verify_eval_weight_consistency(rtol=0.0) and raises:
            first = self.policy_group.compare_weights()[:1]
            raise WeightSyncError(f"after the push of version {version} an eval policy does not have it: {first[0]}")

    def evaluate(self) -> dict[str, float]:
        """Run whole episodes on envs of their own and write the metrics; training goes on as if this had not been.

        Returns:
            The metrics; none if Ctrl-C broke the evaluation off.
        """
        if self.evaluator is None:
            raise ConfigError("this engine has no envs for evaluation: give it an evaluator")
        with self._timer.measure("evaluate"):
            self.load_to_act()
            evaluation = self.evaluator.run(lambda: self._interrupt.is_awaited and self._interrupt.requested)
        if evaluation is None:
            return {}
        self._evaluation = evaluation
        metrics = {
            **evaluation.metrics(),
            **self._count_faults(),
            "time/evaluate_s": self._timer.total_s("evaluate"),
        }
        self.log(metrics)
        self._callbacks.call("on_evaluation", metrics)
        return metrics

    def save(self, *, best: bool = False) -> Path | None:
        """Keep a checkpoint of all that a resumed run needs; ``best`` marks it as the best so far."""
        checkpoint = self._keep(best=best)
        self._callbacks.call("on_save", checkpoint)
        return checkpoint

    def _keep(self, *, best: bool = False) -> Path | None:
        self._checkpoint = self.recorder.save(self.epoch, self.get_state(), best=best)
        self._saved_at = time.monotonic()
        return self._checkpoint

    def _is_save_late(self) -> bool:
        limit_s = self.config.train.save_every_s
        return limit_s is not None and time.monotonic() - self._saved_at >= limit_s

    def get_state(self) -> dict[str, Any]:
        """Return all that a resumed run needs: policies, envs, counters."""
        collected = self.collector.get_state()
        counters = {
            "epoch": self.epoch,
            "env_steps": self.env_steps,
            "max_epochs": self.config.train.max_epochs,
            "best": self._best,
            "returns": list(self._returns),
            "callbacks": self._callbacks.get_state(),
            **{name: collected[name] for name in ("faults", "dropped")},
        }
        return {
            "policy": self.policy_group.get_training_state(),
            "env": collected["env"],
            "engine": counters,
            "spec": self._spec,
        }

    def resume(self, checkpoint: Path | str) -> None:
        """Go on from a checkpoint; envs whose state could not be stored start new episodes, which is logged.

        Raises:
            CheckpointError: If the checkpoint is damaged or does not fit this configuration.
        """
        state = load_state(checkpoint)
        try:
            counters = state["engine"]
            self.epoch, self.env_steps = counters["epoch"], counters["env_steps"]
            self._best = counters["best"]
            self._returns = deque(counters["returns"], maxlen=RETURN_WINDOW)
            self._callbacks.set_state(counters.get("callbacks", []))
            policy, collected = state["policy"], {**counters, "env": state["env"]}
        except KeyError as error:
            raise CheckpointError(f"{checkpoint} is not a checkpoint of a run: it lacks {error}") from error
        try:
            self.policy_group.load_training_state(policy)
            lost = self.collector.set_state(collected, generation=self.epoch)
        except (WorkerError, ProtocolError) as error:
            if isinstance(error, WorkerError) and not isinstance(error.__cause__, CheckpointError):
                raise
            raise CheckpointError(f"{checkpoint} does not fit this run: {error}") from error
        self._log_changed_schedule(counters.get("max_epochs", self.config.train.max_epochs))
        if lost:
            self.policy_group.state.envs_changed()
            names = ", ".join(f"env[{env_id}]" for env_id in lost)
            logger.warning("the state of %s could not be stored: new episodes start there", names)

    def _log_changed_schedule(self, epochs: int) -> None:
        """Log what another number of epochs does to a learning rate that falls over the run."""
        train, schedule = self.config.train, self.config.policy.optim_cfg.schedule
        rates = [train.lr * anneal(schedule, self.epoch / total) for total in (epochs, train.max_epochs)]
        if rates[0] != rates[1]:
            logger.warning(
                "train.max_epochs is %d and was %d: with policy.optim_cfg.schedule=%s the learning rate after epoch %d "
                "is %.3g, where it would have been %.3g; train.lr=... sets the rate that the schedule starts from",
                train.max_epochs,
                epochs,
                schedule,
                self.epoch,
                rates[1],
                rates[0],
            )

    def record_spans(self) -> None:
        """Record of this engine and all workers, from now on, when they do what."""
        self._timer.record_spans()
        for part in self._parts():
            part.record_spans()

    def take_spans(self) -> dict[str, list[Span]]:
        """Return what was recorded since the last call, by worker; the engine is the ``driver``."""
        spans = {"driver": self._timer.take_spans()}
        for part in self._parts():
            spans |= part.take_spans()
        return spans

    def _parts(self) -> list[PolicyGroup | EnvGroup | DataBuffer | Evaluator]:
        """List the parts that have workers."""
        parts: list[PolicyGroup | EnvGroup | DataBuffer | Evaluator] = [self.policy_group, self.env_group, self.buffer]
        return parts if self.evaluator is None else [*parts, self.evaluator]

    @property
    def return_mean(self) -> float:
        """Mean return of the latest training episodes; NaN before the first."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    def close(self) -> None:
        """Close envs and end all that this run started; may be called twice."""
        if self._closed:
            return
        self._closed = True
        gc.unfreeze()
        with ExitStack() as stack:
            if self.config.log.trace:
                # After a failure these tell what it happened in; the workers may not answer any more.
                stack.callback(self.recorder.trace, {"driver": self._timer.take_spans()})
            # Each is closed even if another one fails to.
            stack.callback(self.policy_group.shutdown)
            stack.callback(self.buffer.close)
            if self.evaluator is not None:
                stack.callback(self.evaluator.close)
            stack.callback(self.env_group.close)

    def __enter__(self) -> BaseEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except RLightningError as failure:
            if error is None:
                raise
            # A dead worker cannot be closed either; what it died of is what the caller must see.
            logger.warning("closing failed: %s", failure)

    def _count_episodes(self) -> dict[str, float]:
        episodes = self.env_group.pop_episodes()
        self._returns.extend(episode.return_ for episode in episodes)
        metrics = {"episode/count": float(len(episodes))}
        if self._returns:
            metrics["episode/return_mean_100"] = self.return_mean
        if episodes:
            metrics["episode/return_mean"] = float(np.mean([episode.return_ for episode in episodes]))
            metrics["episode/length_mean"] = float(np.mean([episode.length for episode in episodes]))
        metrics |= {f"env/{name}": mean for name, mean in self.env_group.pop_info_means().items()}
        return metrics | returns_by_task(episodes, "episode/return_mean") | info_means(episodes, "episode")

    def _count_faults(self) -> dict[str, float]:
        counts = Counter(self.env_group.faults.metrics())
        if self.evaluator is not None:
            counts.update(self.evaluator.faults.metrics())
        counts.update({f"dropped/{kind}": float(count) for kind, count in self.collector.dropped.items()})
        return dict(counts)

    def _is_best(self, score: float) -> bool:
        if score > self._best:
            self._best = score
            return True
        return False


def _due(epoch: int, interval: int, last: bool) -> bool:
    """Return whether something that happens every ``interval`` epochs, and at the end, happens now."""
    return last or (interval > 0 and epoch % interval == 0)


def numbers(metrics: Any, what: str = "train returned") -> dict[str, float]:
    """Read what a policy's ``train`` returned, or what else ``what`` names: numbers by name, or nothing."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ProtocolError(f"train must return numbers by name, or None, and returned a {type(metrics).__name__}")
    found = {}
    for name, value in metrics.items():
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ProtocolError(f"{what} no number as {name!r}: {type(value).__name__}, {error}") from error
    return found
