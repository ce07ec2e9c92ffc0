"""All that a resumed run needs of a policy: gathered, copied, and put back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from rlightning.checkpoint import as_picklable
from rlightning.errors import CheckpointError, WeightSyncError
from rlightning.policy.tensors import all_tensors
from rlightning.runtime.generators import global_generators
from rlightning.weights.bundle import check_same_layout

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

_OF_TORCH = vars(torch.nn.Module()).keys()
"""What a module holds its parts in."""
_STEPPERS = {"optimizers": torch.optim.Optimizer, "schedulers": torch.optim.lr_scheduler.LRScheduler}


def clone_checkpoint_value(value: Any) -> Any:
    """Copy a checkpoint payload so that later training cannot change what was saved.

    Args:
        value: Nested dicts, lists, tuples, named tuples and dataclasses with any leaves.

    Returns:
        The same structure; tensors are owned, detached, contiguous and on the CPU, other leaves are deep copies.
    """
    if isinstance(value, torch.Tensor):
        return as_picklable(value.detach().to("cpu", copy=True).contiguous())
    if isinstance(value, Mapping):
        return {key: clone_checkpoint_value(item) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [clone_checkpoint_value(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [clone_checkpoint_value(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: clone_checkpoint_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
        cloned = copy.copy(value)
        for name, item in fields.items():
            object.__setattr__(cloned, name, item)
        return cloned
    return copy.deepcopy(value)


def whole_state(policy: BasePolicy) -> dict[str, Any]:
    """Give all that a resumed run needs of a policy, copied."""
    state = {
        "role": policy.role_type.value,
        "epoch": policy.epoch,
        "version": policy.version,
        "modules": all_tensors(policy),
        **{kind: {name: value.state_dict() for name, value in held.items()} for kind, held in steppers(policy).items()},
        "shared_generator": policy.shared_generator.get_state(),
    }
    return {**clone_checkpoint_value(state), **policy.get_own_state()}


def own_state(policy: BasePolicy) -> dict[str, Any]:
    """Give the part that no other policy of its role shares, copied."""
    state = {
        **policy._generators.get_state(),
        "global_generators": global_generators(),
        "extra": policy.extra_training_state(),
    }
    cloned: dict[str, Any] = clone_checkpoint_value(state)
    return cloned


def load_whole_state(policy: BasePolicy, state: Mapping[str, Any], *, act_only: bool = False) -> None:
    """Put back what ``whole_state`` gave.

    Args:
        policy: A policy that is initialised for the same role.
        state: The state.
        act_only: Load just modules and version, from the state of a policy of any role.

    Raises:
        CheckpointError: If the state belongs to another network or another role; nothing is changed then.
    """
    own, held = all_tensors(policy), steppers(policy)
    try:
        if not act_only:
            _check_fits(state, policy.role_type.value, held)
        check_same_layout(own, state["modules"], type(policy).__name__, state["version"])
        if not act_only:
            _load_steppers(held, state)
        policy._weight_import.copy_in(own, state["modules"], type(policy).__name__, state["version"])
        policy.version = state["version"]
        if act_only:
            return
        policy.epoch = state["epoch"]
        policy.load_generators(state)
        policy.load_extra_training_state(state["extra"])
    except (WeightSyncError, KeyError, AttributeError, ValueError) as error:
        raise CheckpointError(f"the state does not fit {type(policy).__name__}: {error}") from error


def steppers(policy: BasePolicy) -> dict[str, dict[str, Any]]:
    """Find the optimizers and learning rate schedulers of a policy: kind -> name -> object.

    They are attributes, or lie in a dict, list or tuple that is one: ``optimizer``, ``optimizers.critic``, ``heads.0``.
    """
    held = dict(vars(policy))
    for attribute, value in vars(policy).items():
        if isinstance(value, dict) and attribute not in _OF_TORCH:
            held.update((f"{attribute}.{key}", item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            held.update((f"{attribute}.{place}", item) for place, item in enumerate(value))
    return {
        name: {key: value for key, value in held.items() if isinstance(value, kind)} for name, kind in _STEPPERS.items()
    }


def optimizers(policy: BasePolicy) -> Iterable[torch.optim.Optimizer]:
    """Find the optimizers among the attributes of a policy."""
    return steppers(policy)["optimizers"].values()


def _load_steppers(held: Mapping[str, Mapping[str, Any]], state: Mapping[str, Any]) -> None:
    """Load optimizers and schedulers, all of them or none."""
    values = [(value, state[kind][name]) for kind, named in held.items() for name, value in named.items()]
    before = [value.state_dict() for value, _ in values]
    try:
        for value, given in values:
            # Torch keeps the given tensors, and updates them in place: several policies may be given the same.
            value.load_state_dict(clone_checkpoint_value(given))
    except Exception as error:
        for (value, _), own in zip(values, before, strict=True):
            value.load_state_dict(own)
        raise CheckpointError(
            f"the state is of another optimizer or of other parameters ({type(error).__name__}: {error})"
        ) from error


def _check_fits(state: Mapping[str, Any], role: str, held: Mapping[str, Mapping[str, Any]]) -> None:
    if state["role"] != role:
        raise CheckpointError(f"the state is of a policy of role {state['role']!r}, this one is {role}")
    for kind, values in held.items():
        if state[kind].keys() != values.keys():
            raise CheckpointError(f"the state has the {kind} {sorted(state[kind])}, the policy {sorted(values)}")
