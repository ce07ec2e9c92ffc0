"""What a policy holds in its attributes besides modules: optimizers, schedulers, and tensors that only these know."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from rlightning.errors import ProtocolError

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

_OF_TORCH = vars(nn.Module()).keys()
"""What a module holds its parts in."""
_STEPPERS = {"optimizers": torch.optim.Optimizer, "schedulers": torch.optim.lr_scheduler.LRScheduler}
_NO_HELPERS = (torch.Tensor, type, ModuleType, FunctionType, *_STEPPERS.values())
"""What is not searched."""
_LEAVES = frozenset({int, float, bool, complex, str, bytes, type(None), np.ndarray, torch.Tensor})
_DEPTH = 3
"""Containers and helper objects inside each other that are searched."""


def steppers(policy: BasePolicy) -> dict[str, dict[str, Any]]:
    """Find the optimizers and learning rate schedulers of a policy: kind -> name -> object.

    They are attributes, or lie in a dict, list or tuple that is one: ``optimizer``, ``optimizers.critic``, ``heads.0``.
    """
    held = _named(policy)
    return {
        name: {key: value for key, value in held.items() if isinstance(value, kind)} for name, kind in _STEPPERS.items()
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
    places of the group and of the parameter: ``self.log_alpha``, ``self.bounds.0``, ``self.optimizer.0.1``.
    """
    seen, found = set(map(id, others)), {}
    names = {id(value): name for name, value in _named(policy).items() if isinstance(value, torch.Tensor)}
    for key, optimizer in steppers(policy)["optimizers"].items():
        for place, group in enumerate(optimizer.param_groups):
            for index, tensor in enumerate(group["params"]):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"self.{names.get(id(tensor), f'{key}.{place}.{index}')}"] = tensor
    return found


def require_registered(policy: BasePolicy, frame: Iterable[str], others: Iterable[torch.Tensor]) -> None:
    """Make sure that no module is out of sight, since its weights would reach no eval policy.

    Args:
        policy: A policy whose networks are built.
        frame: Its attributes that belong to the framework.
        others: All tensors of its modules; what its author lists, as views of the same memory too.

    Raises:
        ProtocolError: If a list, dict or helper object holds a module with tensors that are not among the others, if
            an optimizer updates one of such a module, or if an optimizer or a schedule lies deeper than ``steppers``
            looks; says where it is.
    """
    tensors = list(others)
    known, places = set(map(id, tensors)), {tensor.data_ptr() for tensor in tensors if tensor.layout == torch.strided}

    def is_strange(tensor: torch.Tensor) -> bool:
        return id(tensor) not in known and (tensor.layout != torch.strided or tensor.data_ptr() not in places)

    own = {name: value for name, value in vars(policy).items() if name not in _OF_TORCH and name not in frame}
    stepping = {id(one) for named in steppers(policy).values() for one in named.values()}
    for path, held in _search(own, type(policy).__name__, set(), _DEPTH + 1):
        if isinstance(held, tuple(_STEPPERS.values())):
            if id(held) not in stepping:
                raise ProtocolError(
                    f"{path} is a {type(held).__name__} that no checkpoint would hold: make it an attribute of the "
                    f"policy, or put it into a dict or list that is one"
                )
            continue
        parts = [held] if isinstance(held, torch.Tensor) else [*held.parameters(), *held.buffers()]
        if not any(map(is_strange, parts)):
            continue
        kind = "ParameterList" if isinstance(held, torch.Tensor) else "ModuleList"
        raise ProtocolError(
            f"{path} holds a {type(held).__name__} that is not registered, so that its weights are neither sent nor "
            f"saved: use nn.{kind} or nn.{kind.replace('List', 'Dict')} in place of a plain container, make it an "
            f"attribute of the policy or of a module, or name it in model_list"
        )
    strange = [tensor for tensor in optimized(policy) if isinstance(tensor, nn.Parameter) and is_strange(tensor)]
    for owner, name in _owners(strange):
        raise ProtocolError(
            f"an optimizer of {type(policy).__name__} updates {name} of a {type(owner).__name__} that is not "
            f"registered, so that its weights are not sent: make it an attribute of the policy, or use nn.ModuleList"
        )


def _named(policy: BasePolicy) -> dict[str, Any]:
    """List the attributes, and what lies in those that are a dict, list or tuple."""
    held = dict(vars(policy))
    for attribute, value in vars(policy).items():
        if isinstance(value, dict) and attribute not in _OF_TORCH:
            held.update((f"{attribute}.{key}", item) for key, item in value.items())
        elif isinstance(value, list | tuple):
            held.update((f"{attribute}.{place}", item) for place, item in enumerate(value))
    return held


def _search(held: Mapping[Any, Any], path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """List modules, parameters, optimizers and schedules in attributes, containers and helpers, with their places."""
    for name, value in held.items():
        if type(value) in _LEAVES or id(value) in seen:
            continue
        seen.add(id(value))
        # By its type, since a weak reference says that it is what it refers to.
        if issubclass(type(value), (nn.Module, nn.Parameter, *_STEPPERS.values())):
            yield f"{path}.{name}", value
        elif depth and (inner := _parts(value)):
            yield from _search(inner, f"{path}.{name}", seen, depth - 1)


def _parts(value: Any) -> Mapping[Any, Any]:
    if issubclass(type(value), Mapping):
        return dict(value)
    if issubclass(type(value), list | tuple | set | frozenset | deque):
        return dict(enumerate(value))
    if issubclass(type(value), (nn.Module, *_NO_HELPERS)):
        return {}
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(value, name)]
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots}}


def _owners(parameters: list[nn.Parameter]) -> Iterator[tuple[nn.Module, str]]:
    """Find the modules of this process that some parameters belong to, and how they are called there."""
    wanted = set(map(id, parameters))
    for module in gc.get_objects() if wanted else ():
        if issubclass(type(module), nn.Module):
            for name, parameter in module._parameters.items():
                if id(parameter) in wanted:
                    yield module, name
