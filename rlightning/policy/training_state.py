"""All that a resumed run needs of a policy: gathered, copied, and put back."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlightning.checkpoint import as_picklable, check_storable
from rlightning.errors import CheckpointError, WeightSyncError
from rlightning.policy.optimizers import steppers, use_changed_options
from rlightning.policy.tensors import Held
from rlightning.runtime.generators import global_generators
from rlightning.weights.layout import check_same_layout

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

logger = logging.getLogger(__name__)


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
    """Return a copy of all that a resumed run needs of a policy."""
    others = {
        **{kind: {name: value.state_dict() for name, value in held.items()} for kind, held in steppers(policy).items()},
        "shared_generator": policy.shared_generator.get_state(),
    }
    return {
        "role": policy.role_type.value,
        "epoch": policy.epoch,
        "version": policy.version,
        "built": clone_checkpoint_value(policy._built_options),
        **{part: _cloned(tensors) for part, tensors in policy._tensors.held()._asdict().items()},
        **clone_checkpoint_value(others),
        **own_state(policy),
    }


def _cloned(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy tensors.

    Raises:
        CheckpointError: If one cannot be copied, as those of some dtypes of less than a byte; names it.
    """
    cloned = {}
    for name, tensor in tensors.items():
        try:
            cloned[name] = clone_checkpoint_value(tensor)
        except RuntimeError as error:
            raise CheckpointError(f"{name} cannot be stored: {error}") from error
    return cloned


def own_state(policy: BasePolicy) -> dict[str, Any]:
    """Return a copy of the part of the training state that no other policy of its role shares."""
    state = {
        **policy._generators.get_state(),
        "global_generators": global_generators(),
        "extra": policy.extra_training_state(),
        "known_envs": policy._answering.known_envs,
    }
    cloned: dict[str, Any] = clone_checkpoint_value(state)
    return cloned


def load_own_state(policy: BasePolicy, state: Mapping[str, Any]) -> None:
    """Restore what is an eval policy's own: its generators and its extra training state."""
    policy._generators.set_state(state)
    policy._answering.known_envs = state.get("known_envs", [])
    if state.get("extra"):  # version 0.1.0 stored none of eval policies
        policy.load_extra_training_state(state["extra"])


def check_extra_training_state(policy: BasePolicy) -> None:
    """Refuse an ``extra_training_state`` that no checkpoint can hold: before a run, and not at its end.

    Raises:
        CheckpointError: If a value cannot be stored; names it.
    """
    check_storable("extra_training_state", policy.extra_training_state())


def load_whole_state(policy: BasePolicy, state: Mapping[str, Any], *, act_only: bool = False) -> None:
    """Restore a state that ``whole_state`` returned.

    Args:
        policy: A policy that is initialised for the same role.
        state: The state.
        act_only: Load just what acts and its version, from the state of a policy of any role.

    Raises:
        CheckpointError: If the state belongs to another network or another role; nothing is changed then.
    """
    try:
        if not act_only and state["role"] != policy.role_type.value:
            raise CheckpointError(
                f"the state is of a policy of role {state['role']!r}, this one is {policy.role_type.value}"
            )
        own, given = _stored(policy._tensors.held(), state, ("modules", "listed") if act_only else Held._fields)
        check_same_layout(own.joined(), given.joined(), type(policy).__name__, state["version"])
        if not act_only:
            _load_steppers(policy, state)
            use_changed_options(policy, state)
        policy._tensors.put_back(own, given, state["version"])
        policy.version = state["version"]
        if act_only:
            return
        policy.epoch = state["epoch"]
        policy._generators.set_state(state)
        policy.load_extra_training_state(state["extra"])
    except (WeightSyncError, KeyError, AttributeError, ValueError) as error:
        raise CheckpointError(f"the state does not fit {type(policy).__name__}: {error}") from error


def _stored(own: Held, state: Mapping[str, Any], parts: Sequence[str]) -> tuple[Held, Held]:
    """Choose some parts of what a policy holds and their values in a state, which version 0.1.0 may have made."""
    if missing := [part for part in parts if part != "modules" and part not in state]:
        names = [name for part in missing for name in getattr(own, part)]
        if names:
            logger.warning("%s stay as they are: rlightning 0.1.0, which made the state, did not store them", names)
    left_out: dict[str, Any] = {part: {} for part in Held._fields if part not in parts or part in missing}
    return own._replace(**left_out), Held(*(state.get(part, {}) for part in Held._fields))._replace(**left_out)


def _load_steppers(policy: BasePolicy, state: Mapping[str, Any]) -> None:
    """Load the optimizers and schedulers of a policy from a training state, all of them or none.

    Raises:
        CheckpointError: If the state has other ones, or is of other parameters.
    """
    held = steppers(policy)
    for kind, values in held.items():
        if state[kind].keys() != values.keys():
            raise CheckpointError(f"the state has the {kind} {sorted(state[kind])}, the policy {sorted(values)}")
    pairs = [(value, state[kind][name]) for kind, named in held.items() for name, value in named.items()]
    before = [value.state_dict() for value, _ in pairs]
    try:
        for value, given in pairs:
            # Torch keeps the given tensors, and updates them in place: several policies may be given the same.
            value.load_state_dict(clone_checkpoint_value(given))
    except Exception as error:
        for (value, _), own in zip(pairs, before, strict=True):
            value.load_state_dict(own)
        raise CheckpointError(
            f"the state is of another optimizer or of other parameters ({type(error).__name__}: {error})"
        ) from error
