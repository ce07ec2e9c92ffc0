"""Which tensors a policy is made of, and what they are called."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from rlightning.weights.bundle import flatten_names, strip_wrappers
from rlightning.weights.layout import NamedTensors


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


def all_tensors(policy: nn.Module) -> dict[str, torch.Tensor]:
    """List all parameters and buffers that are kept, those of no model included; names as in ``acting_tensors``.

    ``nn.Module.state_dict`` of the policy itself would not do: Ray wraps an actor's methods, which torch takes for
    overridden ones.
    """
    modules = [*policy.named_children(), ("self", _OwnTensors(policy))]
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
