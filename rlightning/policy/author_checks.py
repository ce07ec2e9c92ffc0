"""Checks of an author's subclass of ``BasePolicy``: of the class, of an object, of its networks."""

from __future__ import annotations

import dis
import functools
import gc
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from rlightning.errors import ProtocolError, ReservedName
from rlightning.policy.optimizers import OF_TORCH, STEPPERS, optimized, steppers

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

HOOKS = frozenset(
    {"_rollout", "_rollout_async", "_postprocess", "_get_node_id", "_get_gpu_ids", "_get_addr_and_port"},
)
"""Private methods that the contract of a policy lists, so that a subclass may write them anew."""
_OF_AUTHORS = frozenset({"dataset", "model_list"})
"""Attributes that the framework begins with a value, and an author sets."""
_NOTHING = object()
_NO_HELPERS = (torch.Tensor, type, ModuleType, FunctionType, *STEPPERS.values())
"""What is not searched for modules."""
_LEAVES = frozenset({int, float, bool, complex, str, bytes, type(None), np.ndarray, torch.Tensor})
_DEPTH = 3
"""Containers and helper objects inside each other that are searched."""


@functools.cache
def reserved_names(base: Any) -> frozenset[str]:
    """List the names that an author must not use for something else.

    They are the private methods of the base class, and the attributes that its constructor sets: those would hide a
    method of the same name.
    """
    attributes = {step.argval for step in dis.get_instructions(base.__init__) if step.opname == "STORE_ATTR"}
    methods = {
        name
        for name, value in vars(base).items()
        if name.startswith("_") and not name.startswith("__") and (callable(value) or isinstance(value, property))
    }
    return frozenset(attributes | methods) - HOOKS - _OF_AUTHORS


def check_class(cls: type[BasePolicy], base: Any) -> None:
    """Refuse a class that uses names of the framework, also by a mixin, and have its constructor checked.

    Raises:
        ReservedName: Names the class and what it calls so.
    """
    reserved = reserved_names(base)
    for owner in cls.__mro__[: cls.__mro__.index(base)]:
        held = vars(owner)
        for name in reserved & held.keys():
            # Ray wraps all methods of an actor, inherited ones too.
            if inspect.unwrap(held[name]) is not inspect.unwrap(vars(base).get(name, _NOTHING)):
                raise _refusal(owner.__name__, [name])
    for name in ("_rollout", "_rollout_async"):
        if name in vars(cls):
            setattr(cls, name, _with_known_options(vars(cls)[name]))
    if "__init__" in vars(cls):
        cls.__init__ = _checked(cls.__init__, cls.__name__)  # type: ignore[method-assign]


def framework_attributes(policy: BasePolicy, base: Any) -> dict[str, Any]:
    """Return the attributes of a policy that are the framework's, to be compared later."""
    held, reserved = vars(policy), reserved_names(base)
    return {name: value for name, value in held.items() if name in reserved and name != "_attributes"}


def check_attributes(policy: BasePolicy, before: dict[str, Any]) -> None:
    """Refuse attributes that an author has set and the framework calls so.

    Raises:
        ReservedName: Names them.
    """
    now = vars(policy)
    if changed := [name for name, value in before.items() if now.get(name, _NOTHING) is not value]:
        raise _refusal(type(policy).__name__, changed)


def _refusal(owner: str, names: Iterable[str]) -> ReservedName:
    parts = [f"{name} (call it {'_own' if name.startswith('_') else 'own_'}{name})" for name in sorted(names)]
    return ReservedName(f"{owner} uses names that the framework needs in each policy: {', '.join(parts)}")


def _with_known_options(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Leave out the options that an author's hook does not take; the contract passes it the request alone."""
    parameters = inspect.signature(hook).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return hook

    @functools.wraps(hook)
    def call(self: BasePolicy, env_ret: Any, *args: Any, **options: Any) -> Any:
        return hook(self, env_ret, *args, **{name: value for name, value in options.items() if name in parameters})

    return call


def _checked(init: Callable[..., None], owner: str) -> Callable[..., None]:
    """Check after a constructor of an author that the policy is one, and what was put into it."""
    forgotten = f"{owner}.__init__ must call super().__init__(config, role_type) before all else"

    @functools.wraps(init)
    def construct(self: BasePolicy, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except AttributeError as error:
            if "_modules" in vars(self):
                raise
            raise ProtocolError(f"{forgotten} ({error})") from error
        if "is_init" not in vars(self):
            raise ProtocolError(forgotten)
        check_attributes(self, self._attributes)
        if self._modules:
            raise ProtocolError(
                f"{owner}.__init__ builds {', '.join(self._modules)}: build networks in construct_network, which is "
                f"called with the spaces of the env, by one seed on all policies, and again after a reset"
            )

    return construct


def require_registered(policy: BasePolicy) -> None:
    """Refuse modules that torch does not find, since their weights would reach no eval policy.

    Args:
        policy: A policy whose networks are built.

    Raises:
        ProtocolError: If a list, dict or helper object holds a module with tensors that are neither those of a
            registered module nor listed by the author, if an optimizer updates one of such a module, or if an
            optimizer or a schedule lies deeper than ``steppers`` looks; says where it is.
    """
    tensors = policy._tensors.in_modules()
    if not policy._tensors.lists_plainly:
        tensors += [tensor for named in policy._tensors.acting().values() for tensor in named.values()]
    known, places = set(map(id, tensors)), {tensor.data_ptr() for tensor in tensors if tensor.layout == torch.strided}

    def is_strange(tensor: torch.Tensor) -> bool:
        return id(tensor) not in known and (tensor.layout != torch.strided or tensor.data_ptr() not in places)

    own = {name: value for name, value in vars(policy).items() if name not in OF_TORCH and name not in policy._frame}
    stepping = {id(one) for named in steppers(policy).values() for one in named.values()}
    for path, held in _search(own, type(policy).__name__, set(), _DEPTH + 1):
        if isinstance(held, tuple(STEPPERS.values())):
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


def _search(held: Mapping[Any, Any], path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """List modules, parameters, optimizers and schedules in attributes, containers and helpers, with their places."""
    for name, value in held.items():
        if type(value) in _LEAVES or id(value) in seen:
            continue
        seen.add(id(value))
        # By its type, since a weak reference says that it is what it refers to.
        if issubclass(type(value), (nn.Module, nn.Parameter, *STEPPERS.values())):
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


def is_inherited(cls: type[Any], method: Callable[..., Any]) -> bool:
    """Whether a class leaves a method of ``BasePolicy`` as it is; Ray wraps all methods of an actor."""
    return inspect.unwrap(getattr(cls, method.__name__, None)) is method  # type: ignore[arg-type]
