"""Proof that the numbers do not depend on where the workers live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from rlightning.assembly.assemble import assemble
from rlightning.commands.states import short, tree_digest
from rlightning.config import Config
from rlightning.configuring.load import LoadedConfig
from rlightning.observability.logs import log_to_console

_PLACES = {
    "local": {"remote_env": False, "remote_eval": False, "remote_storage": False, "remote_train": False},
    "remote": {"remote_env": True, "remote_eval": True, "remote_storage": True, "remote_train": True},
    "mixed": {"remote_env": True, "remote_eval": False, "remote_storage": True, "remote_train": False},
}
"""The ways to place the workers that are compared."""
_TIMES = "time/"
"""Metrics under this prefix differ from run to run."""


@dataclass(slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        parameters: Digest of all that acts.
        state: Digest of the whole training state: optimizer, counters, generators, envs. What Python, numpy and torch
            draw from where no generator is given is left out: every process has that for itself.
        metrics: Metrics of each epoch, without times.
        env_steps: Env steps.
        seconds: Duration of the epochs.
    """

    parameters: str = ""
    state: str = ""
    metrics: list[dict[str, float]] = field(default_factory=list)
    env_steps: int = 0
    seconds: float = 0.0


def check_parity(loaded: LoadedConfig, epochs: int, console: Console) -> bool:
    """Run a configuration with its workers here, elsewhere and mixed, and print a table of digests and a verdict.

    Args:
        loaded: The configuration; where its workers live is replaced.
        epochs: Epochs of each run; schedules still refer to ``train.max_epochs``.
        console: Where to print.

    Returns:
        Whether all runs are equal bit for bit.
    """
    log_to_console("warning")
    outcomes = {}
    for name, places in _PLACES.items():
        console.print(f"running {epochs} epochs, {name} ...")
        cluster = loaded.config.cluster.model_copy(update=places)
        outcomes[name] = run_epochs(loaded.config.model_copy(update={"cluster": cluster}), epochs)
    console.print()
    console.print(_table(outcomes))
    first = outcomes["local"]
    verdicts = {name: _verdict(first, outcome) for name, outcome in outcomes.items() if name != "local"}
    for name, verdict in verdicts.items():
        if verdict:
            console.print(f"[bold red]{name} differs from local:[/] {verdict}")
    if any(verdicts.values()):
        return False
    console.print(f"[bold green]equal[/]: {len(outcomes)} runs of {epochs} epochs agree bit for bit")
    return True


def run_epochs(config: Config, epochs: int) -> Outcome:
    """Run some epochs without a run folder and digest what came out."""
    outcome = Outcome()
    with assemble(config) as engine:
        engine.start()
        start = time.perf_counter()
        for _ in range(epochs):
            outcome.metrics.append(without_times(engine.run_epoch()))
        outcome.seconds = time.perf_counter() - start
        outcome.env_steps = engine.env_steps
        state = engine.get_state()
    policies = state["policy"]
    for worker in (policies["train"], *policies["train_peers"], *policies["eval"], *filter(None, state["env"])):
        del worker["global_generators"]  # each process has its own
    outcome.parameters = tree_digest(state["policy"]["train"]["modules"])
    outcome.state = tree_digest(state)
    return outcome


def without_times(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out what differs from run to run.

    >>> without_times({"train/lr": 0.1, "time/learn_s": 2.0})
    {'train/lr': 0.1}
    """
    return {name: value for name, value in metrics.items() if not name.startswith(_TIMES)}


def _verdict(first: Outcome, other: Outcome) -> str:
    """Describe what differs; empty if nothing does."""
    for epoch, (expected, found) in enumerate(zip(first.metrics, other.metrics, strict=True), 1):
        names = [name for name in {**expected, **found} if not _same(expected.get(name), found.get(name))]
        if names:
            return f"first in epoch {epoch}: {', '.join(names)}"
    if first.parameters != other.parameters:
        return "the parameters, though all metrics are equal"
    return "" if first.state == other.state else "optimizer, generators or envs, though the parameters are equal"


def _same(left: Any, right: Any) -> bool:
    return tree_digest(left) == tree_digest(right)


def _table(outcomes: Mapping[str, Outcome]) -> Table:
    numbers = [Column(name, justify="right") for name in ("env steps", "seconds")]
    table = Table("workers", "parameters", "whole state", *numbers, box=None, pad_edge=False)
    for name, outcome in outcomes.items():
        digests = short(outcome.parameters), short(outcome.state)
        table.add_row(name, *digests, f"{outcome.env_steps:,}", f"{outcome.seconds:.1f}")
    return table
