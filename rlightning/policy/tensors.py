"""Which tensors a policy is made of, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from rlightning.weights.bundle import flatten_names, strip_wrappers
from rlightning.weights.layout import NamedTensors

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


def acting_tensors(policy: nn.Module, models: Iterable[tuple[str, nn.Module]]) -> NamedTensors:
    """Give the parameters and buffers of some modules of a policy, and those that it holds itself.

    Returns:
        Module name -> tensor name -> the live tensor; names are free of the prefixes of wrappers.
    """
    own = [("self", _OwnTensors(policy))] if policy._parameters or policy._buffers else []
    tensors: NamedTensors = {}
    for name, module in [*models, *own]:
        state = module.state_dict(keep_vars=True)
        tensors[name] = {strip_wrappers(key): value for key, value in state.items()}
    return tensors


def with_buffers(given: NamedTensors, models: Iterable[tuple[str, nn.Module]]) -> NamedTensors:
    """Add the buffers that an author left out to what the author gives of some modules.

    A module whose parameters are all given, under its own name, acts with its buffers too, such as the statistics of a
    normalisation. Of what is given otherwise, the author says in full what acts.
    """
    whole = dict(given)
    for name, module in models:
        named = given.get(name)
        if named is None:
            continue
        parameters = {strip_wrappers(key) for key, _ in module.named_parameters(remove_duplicate=False)}
        if parameters <= named.keys():
            state = {strip_wrappers(key): value for key, value in module.state_dict(keep_vars=True).items()}
            whole[name] = {**named, **{key: value for key, value in state.items() if key not in named}}
    return whole


def all_tensors(policy: BasePolicy) -> dict[str, torch.Tensor]:
    """List all parameters and buffers that are kept, those of no model included; names as in ``acting_tensors``.

    A model may be held by something else than an attribute of the policy.

    ``nn.Module.state_dict`` of the policy itself would not do: Ray wraps an actor's methods, which torch takes for
    overridden ones.
    """
    known = set(policy.modules())
    others = [(name, module) for name, module in policy._models() if module not in known]
    modules = [*policy.named_children(), *others, ("self", _OwnTensors(policy))]
    states = {name: module.state_dict(keep_vars=True) for name, module in modules}
    return {strip_wrappers(name): tensor for name, tensor in flatten_names(states).items()}


def distinct_tensors(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """List all parameters and buffers of modules, persistent or not, each once."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return list({id(tensor): tensor for tensor in tensors}.values())


class _OwnTensors(nn.Module):
    """The parameters and buffers that a policy holds itself, outside of its sub-modules."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self._parameters = policy._parameters
        self._buffers = policy._buffers
        self._non_persistent_buffers_set = policy._non_persistent_buffers_set
