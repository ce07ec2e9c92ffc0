"""What an author's subclass of ``BasePolicy`` is checked for, when the class is made and when one of it is made."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rlightning.errors import ProtocolError, ReservedName

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy

HOOKS = frozenset(
    {"_rollout", "_rollout_async", "_postprocess", "_get_node_id", "_get_gpu_ids", "_get_addr_and_port"},
)
"""Private methods that the contract of a policy lists, so that a subclass may write them anew."""
_OF_AUTHORS = frozenset({"dataset", "model_list"})
"""Attributes that the framework begins with a value, and an author sets."""
_NOTHING = object()


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
