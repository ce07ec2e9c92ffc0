"""The optimizers and learning-rate schedulers of a policy: where they are, what they hold, how they were built."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

logger = logging.getLogger(__name__)

OF_TORCH = vars(nn.Module()).keys()
"""What a module holds its parts in."""
STEPPERS = {"optimizers": torch.optim.Optimizer, "schedulers": torch.optim.lr_scheduler.LRScheduler}
"""Kind -> class."""
_RATES = ("lr", "initial_lr")
_OF_RATES = ("base_lrs", "_last_lr")
"""Attributes of a schedule that follow from the rates of its optimizer."""

Built = dict[str, dict[str, Any]]
"""Kind -> name -> options: of an optimizer one dict per parameter group, of a schedule one dict."""


def steppers(policy: BasePolicy) -> dict[str, dict[str, Any]]:
    """Find the optimizers and learning rate schedulers of a policy: kind -> name -> object.

    They are attributes, or lie in a dict, list or tuple that is one: ``optimizer``, ``optimizers.critic``, ``heads.0``.
    """
    held = _named(policy)
    return {
        name: {key: value for key, value in held.items() if isinstance(value, kind)} for name, kind in STEPPERS.items()
    }


def optimizers(policy: BasePolicy) -> Iterable[torch.optim.Optimizer]:
    """Find the optimizers among the attributes of a policy."""
    return steppers(policy)["optimizers"].values()


def optimized(policy: BasePolicy) -> Iterator[torch.Tensor]:
    """List what the optimizers of a policy update."""
    for optimizer in optimizers(policy):
        for group in optimizer.param_groups:
            yield from group["params"]


def optimizer_only(policy: BasePolicy, others: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name the tensors that optimizers update and that are not among others, such as a temperature.

    The name is that of the attribute that holds the tensor, as for optimizers, else that of the optimizer with the
    indices of the group and of the parameter: ``self.log_alpha``, ``self.bounds.0``, ``self.optimizer.0.1``.
    """
    seen, found = set(map(id, others)), {}
    names = {id(value): name for name, value in _named(policy).items() if isinstance(value, torch.Tensor)}
    for key, optimizer in steppers(policy)["optimizers"].items():
        for at, group in enumerate(optimizer.param_groups):
            for index, tensor in enumerate(group["params"]):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"self.{names.get(id(tensor), f'{key}.{at}.{index}')}"] = tensor
    return found


def _named(policy: BasePolicy) -> dict[str, Any]:
    """List the attributes, and what lies in those that are a dict, list or tuple."""
    held = dict(vars(policy))
    for attribute, value in vars(policy).items():
        if isinstance(value, dict) and attribute not in OF_TORCH:
            held.update((f"{attribute}.{key}", item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            held.update((f"{attribute}.{index}", item) for index, item in enumerate(value))
    return held


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
        for at, group in enumerate(optimizer.param_groups):
            before, after = then["optimizers"][name][at], now["optimizers"][name][at]
            for option in _different(before, after):
                _log(f"{name}.{at}.{option}", before[option], after[option], epoch)
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
