"""Evaluation alone: nothing is trained and nothing is saved."""

from __future__ import annotations

from pathlib import Path

from rlightning.checkpoint import load_state
from rlightning.engine.base_engine import BaseEngine, RunResult
from rlightning.errors import ConfigError, ProtocolError


class EvalEngine(BaseEngine):
    """Runs one evaluation (``engine: eval``) of the weights of a checkpoint, or of the initial ones."""

    def run(self) -> RunResult:
        self.start()
        self.evaluate()
        return RunResult(self.epoch, self.env_steps, self.return_mean, self._evaluation, None)

    def start(self) -> None:
        if self.evaluator is None:
            raise ConfigError("engine: eval needs envs for evaluation")
        if self.policy_group.version is None:
            self.publish()

    def _run_epoch(self) -> dict[str, float]:
        raise ProtocolError("an evaluation collects no data: set engine to syncrl or rsl to train")

    def resume(self, checkpoint: Path | str) -> None:
        """Load the weights of a checkpoint, and nothing else."""
        state = load_state(checkpoint, ["policy", "engine"])
        self.policy_group.state.load_weights(state["policy"])
        self.epoch, self.env_steps = state["engine"]["epoch"], state["engine"]["env_steps"]
