"""Weights and normalisers of an earlier run as the initial ones of a new run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlightning.errors import CheckpointError
from rlightning.policy.tensors import Held

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


def take_weights(policy: BasePolicy, state: Mapping[str, Any]) -> list[str]:
    """Copy the tensors of a training state that have the name, shape and dtype of one of the policy's.

    Version, epoch, optimizer and generators stay those of a new policy.

    Args:
        policy: An initialised policy.
        state: What ``get_training_state`` of another policy returned.

    Returns:
        A description of each tensor on one side that the other one lacks or has in another shape.

    Raises:
        CheckpointError: If there is none to take.
    """
    own = policy._tensors.held()
    given = {**state["modules"], **state.get("listed", {})}
    taken, left = {}, []
    for name, tensor in {**own.modules, **own.listed}.items():
        value = given.pop(name, None)
        if value is not None and (value.shape, value.dtype) == (tensor.shape, tensor.dtype):
            taken[name] = value
        else:
            found = "it has none" if value is None else f"it has {list(value.shape)} {value.dtype}"
            left.append(f"{name} {list(tensor.shape)} {tensor.dtype} stays as it is: {found}")
    if not taken:
        raise CheckpointError(f"no tensor of it fits {type(policy).__name__}: {'; '.join(left)}")
    left += [f"{name} {list(value.shape)} of it has no use" for name, value in given.items()]
    # An author's method loads all that it lists, or nothing.
    listed = {name: tensor for name, tensor in own.listed.items() if own.listed.keys() <= taken.keys()}
    modules = {name: tensor for name, tensor in own.modules.items() if name in taken}
    chosen = Held(modules, listed, {})
    values = Held({name: taken[name] for name in modules}, {name: taken[name] for name in listed}, {})
    policy._tensors.put_back(chosen, values, policy.version)
    return left
