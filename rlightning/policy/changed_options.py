"""Options of learning that differ from those that a training state was made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

Changes = Mapping[str, tuple[Any, Any]]
"""Name of an option -> its value in the state and its value now."""

_COUNTERS = {"last_epoch", "_step_count", "_last_lr", "base_lrs", "_get_lr_called_within_step"}
"""What a schedule has come to, apart from how it was built."""


def options_of(policy: BasePolicy) -> dict[str, Any]:
    """Return the options that optimizers and schedules are built with; none for a policy that does not learn."""
    train = getattr(policy, "train_config", None)
    if train is None:
        return {}
    return {"lr": train.lr, "max_epochs": train.max_epochs, **policy.config.optim_cfg.model_dump()}


def changed_options(policy: BasePolicy, state: Mapping[str, Any]) -> Changes:
    """Compare the options of a policy with those that a state was made with; version 0.1.0 stored none."""
    before = state.get("options", {})
    return {name: (before[name], now) for name, now in options_of(policy).items() if before.get(name, now) != now}


def use_in_optimizer(optimizer: torch.optim.Optimizer, built: Sequence[Mapping[str, Any]], changes: Changes) -> None:
    """Replace restored options of an optimizer by those that were changed.

    Args:
        optimizer: An optimizer whose state was restored.
        built: Its parameter groups as ``setup_optimizer`` built them, with the options of now.
        changes: What was changed.
    """
    for group, fresh in zip(optimizer.param_groups, built, strict=True):
        group |= {name: fresh[name] for name in changes if name in group and name != "lr"}
        first = group.get("initial_lr", group["lr"])
        # A rate that is built as it was does not come from train.lr.
        if "lr" in changes and first != fresh.get("initial_lr", fresh["lr"]):
            before, now = changes["lr"]
            group |= {name: group[name] * (now / before) for name in ("lr", "initial_lr") if name in group}


def use_in_schedule(schedule: Any, built: Mapping[str, Any], changes: Changes) -> None:
    """Replace restored options of a learning rate schedule by those that were changed.

    Args:
        schedule: A schedule whose state was restored, after that of its optimizer.
        built: Its state as ``setup_optimizer`` built it, with the options of now.
        changes: What was changed.
    """
    for name, value in built.items():
        if name not in _COUNTERS and (getattr(schedule, name, None), value) in changes.values():
            setattr(schedule, name, value)
    groups = schedule.optimizer.param_groups
    if "lr" in changes:
        schedule.base_lrs = [group["initial_lr"] for group in groups]
        schedule._last_lr = [group["lr"] for group in groups]
