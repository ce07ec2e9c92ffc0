"""Options of optimizers and schedules, as they are built; what changed since a training state was made is used."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlightning.policy.attributes import steppers

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

logger = logging.getLogger(__name__)

_RATES = ("lr", "initial_lr")
_OF_RATES = ("base_lrs", "_last_lr")
"""Attributes of a schedule that follow from the rates of its optimizer."""

Built = dict[str, dict[str, Any]]
"""Kind -> name -> options: of an optimizer one dict per parameter group, of a schedule one dict."""


def built_options(policy: BasePolicy) -> Built:
    """Describe the optimizers and schedules of a policy as ``setup_optimizer`` has just built them."""
    held = steppers(policy)
    return {
        "optimizers": {
            name: [{key: value for key, value in group.items() if key != "params"} for group in one.param_groups]
            for name, one in held["optimizers"].items()
        },
        "schedulers": {
            name: {key: value for key, value in one.state_dict().items() if key not in _OF_RATES}
            for name, one in held["schedulers"].items()
        },
    }


def use_changed_options(policy: BasePolicy, state: Mapping[str, Any]) -> None:
    """Replace options that were restored from a state by those that are built otherwise now.

    A rate keeps its progress under a schedule: it is multiplied by the ratio of the rates that were built.

    Args:
        policy: A policy whose optimizers and schedules were restored.
        state: The state, whose "built" is how they were built then; version 0.1.0 stored none.
    """
    then, now = state.get("built"), policy._built_options
    if then is None:
        return
    held, epoch = steppers(policy), state["epoch"] + 1
    for name, optimizer in held["optimizers"].items():
        for place, group in enumerate(optimizer.param_groups):
            before, after = then["optimizers"][name][place], now["optimizers"][name][place]
            for option in _different(before, after):
                _log(f"{name}.{place}.{option}", before[option], after[option], epoch)
                group[option] = _rate(group, before, after, option) if option in _RATES else after[option]
    for name, schedule in held["schedulers"].items():
        before, after = then["schedulers"][name], now["schedulers"][name]
        for option in _different(before, after):
            _log(f"{name}.{option}", before[option], after[option], epoch)
            setattr(schedule, option, after[option])
        if hasattr(schedule, "base_lrs"):
            groups = schedule.optimizer.param_groups
            schedule.base_lrs = [group["initial_lr"] for group in groups]
            schedule._last_lr = [group["lr"] for group in groups]


def _rate(group: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], option: str) -> Any:
    return group[option] * (after[option] / before[option]) if before[option] else after[option]


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for option, value in after.items():
        if option in before and before[option] != value:
            yield option


def _log(name: str, before: Any, after: Any, epoch: int) -> None:
    logger.info("%s is %s from epoch %d on; it was %s", name, after, epoch, before)
