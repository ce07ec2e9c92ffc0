"""The tensors of a policy, and their names."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from rlightning.errors import ConfigError, ProtocolError
from rlightning.policy.memory import Part, optimizer_tensors
from rlightning.policy.optimizers import optimizer_only, optimizers
from rlightning.weights.comparison import strip_wrappers
from rlightning.weights.layout import NamedTensors, check_same_layout, each, flatten_names

if TYPE_CHECKING:
    from rlightning.policy.base_policy import BasePolicy


_EXTRA = "_extra_state"
"""Name of the result of ``nn.Module.get_extra_state`` in a state dict."""
_WRAPPED = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module"})
"""What torch's own wrappers call the module that they wrap."""
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_LISTED = " (listed)"
"""Suffix that distinguishes the name of a tensor that an author lists from an equal one of a module."""


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module that are kept, by names without the prefixes of wrappers.

    They are those of ``module.state_dict(keep_vars=True)`` in its order, found in less than half of its time: with
    thousands of tensors that counts in a push of weights.

    Raises:
        ProtocolError: If a module keeps something else besides, which would neither travel nor be loaded.

    >>> list(named_tensors(nn.Sequential(nn.DataParallel(nn.Linear(1, 1)))))
    ['0.weight', '0.bias']
    """
    found: dict[str, torch.Tensor] = {}
    if _collect(module, "", found, by_name=True) != len(found):
        # An author's module calls a part of itself as wrappers do, and two of its tensors would have one name.
        found = {}
        _collect(module, "", found, by_name=False)
    return found


def _collect(module: nn.Module, path: str, found: dict[str, torch.Tensor], *, by_name: bool) -> int:
    """Add the tensors of a module under a path; returns how many there are.

    Args:
        module: The module.
        path: Prefix of the names.
        found: Where they are added.
        by_name: Recognise wrappers by the name of what they wrap; else by their class as well.
    """
    kind: Any = type(module)
    if not _has_plain_state(kind) or module._state_dict_hooks or module._state_dict_pre_hooks:
        state = module.state_dict(keep_vars=True)
        if extra := [f"{path}{name}" for name in state if name.rpartition(".")[2] == _EXTRA]:
            raise ProtocolError(
                f"a module has a get_extra_state ({', '.join(extra)}), which does not travel: what acts are parameters "
                f"and buffers, so make it a buffer; what only training needs, extra_training_state keeps"
            )
        found.update((path + (strip_wrappers(name) if by_name else name), tensor) for name, tensor in state.items())
        return len(state)
    count = 0
    for name, parameter in module._parameters.items():
        if parameter is not None:
            found[path + name] = parameter
            count += 1
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            found[path + name] = buffer
            count += 1
    for name, child in module._modules.items():
        if child is not None:
            wraps = name in _WRAPPED and (by_name or name != "module" or isinstance(module, _PARALLEL))
            count += _collect(child, path if wraps else f"{path}{name}.", found, by_name=by_name)
    return count


@functools.lru_cache(maxsize=1024)
def _has_plain_state(kind: Any) -> bool:
    """Whether the state dict of modules of a class is what they hold, since no method for it is overridden."""
    return all(
        getattr(kind, name) is getattr(nn.Module, name)
        for name in ("state_dict", "_save_to_state_dict", "get_extra_state")
    )


def own_tensors(policy: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that a policy holds itself, outside of its sub-modules, and that are kept."""
    held = {**policy._parameters, **policy._buffers}
    kept = held.keys() - policy._non_persistent_buffers_set
    return {name: tensor for name, tensor in held.items() if tensor is not None and name in kept}


def with_buffers(given: NamedTensors, models: Iterable[tuple[str, nn.Module]]) -> NamedTensors:
    """Add the buffers that an author left out to what the author lists of some modules.

    A module whose parameters are all listed, under its own name, acts with its buffers too, such as the statistics of a
    normalisation. What is listed otherwise is complete.
    """
    whole = plain_names(given)
    for name, module in models:
        named = whole.get(name)
        if named is None:
            continue
        state = named_tensors(module)
        if all(key in named for key, value in state.items() if isinstance(value, nn.Parameter)):
            whole[name] = {**named, **{key: value for key, value in state.items() if key not in named}}
    return whole


def plain_names(given: NamedTensors) -> NamedTensors:
    """Remove the prefixes of wrappers from the names that an author lists, where they stay different."""
    plain = {
        module: {strip_wrappers(name): tensor for name, tensor in named.items()} for module, named in given.items()
    }
    return {module: plain[module] if len(plain[module]) == len(named) else named for module, named in given.items()}


class Held(NamedTuple):
    """All tensors that learn or act, by what holds them; no name is in two of the parts.

    Attributes:
        modules: Parameters and buffers that are kept, those of no model included; names as in ``named_tensors``.
        listed: What ``get_trainable_parameters`` lists besides.
        learned: What only an optimizer holds besides; see ``optimizer_only``.
    """

    modules: dict[str, torch.Tensor]
    listed: dict[str, torch.Tensor]
    learned: dict[str, torch.Tensor]

    def joined(self) -> dict[str, torch.Tensor]:
        """Return all of them by name."""
        return {**self.modules, **self.listed, **self.learned}


class PolicyTensors:
    """Finds the tensors of a policy by their purpose: what acts, what learns, what an optimizer keeps.

    Authors may put other tensors and modules into a policy at any time, so that every use looks anew. For the
    policy's ``WeightPort`` it is the ``Acting``.

    Attributes:
        lists_plainly: Whether what acts is all of ``model_list``, since the author lists nothing otherwise.
        loads_plainly: Whether values are copied into what acts, since the author loads in no way of its own.
    """

    def __init__(self, policy: BasePolicy, *, lists_plainly: bool, loads_plainly: bool) -> None:
        # Weakly: a policy and its tensors end with their last user, and do not wait for the garbage collector.
        self._policy = cast("BasePolicy", weakref.proxy(policy))
        self.lists_plainly, self.loads_plainly = lists_plainly, loads_plainly
        self._built: frozenset[str] = frozenset()
        self._followed: frozenset[str] = frozenset()

    def name_models(self) -> None:
        """Fill ``model_list`` where the author left it empty, after the networks were built.

        Raises:
            ConfigError: If two models have one name.
        """
        policy = self._policy
        self._built = frozenset() if policy.model_list else frozenset(policy._modules)
        if not policy.model_list:
            policy.model_list = [(name, child) for name, child in policy.named_children() if child.state_dict()]
        names = [name for name, _ in policy.model_list]
        if len({*names, "self"}) <= len(names):
            raise ConfigError(
                f"{policy.__class__.__name__}: the models are {', '.join(names)}; each wants a name of its own, and "
                f"'self' is that of the policy's own parameters"
            )
        self._followed = frozenset(name for name, module in policy.model_list if policy._modules.get(name) is module)

    def models(self) -> list[tuple[str, nn.Module]]:
        """Return ``model_list``; where an author has put another module in the place of an attribute, that one.

        Raises:
            ProtocolError: If an eval policy has built something since that no weights come for.
        """
        policy = self._policy
        modules = policy._modules
        if self._built and policy.role_type == "eval" and len(modules) > len(self._built):
            late = [name for name, child in policy.named_children() if name not in self._built and child.state_dict()]
            if late:
                raise ProtocolError(
                    f"{self.name} built {', '.join(late)} after init_eval, and no weights come for that: build it in "
                    f"construct_network, on learners and actors alike"
                )
        now = [(name, modules.get(name) if name in self._followed else None, own) for name, own in policy.model_list]
        policy.model_list = [(name, own if other is None else other) for name, other, own in now]
        return policy.model_list

    def of_models(self) -> NamedTensors:
        """Return parameters and buffers of all models, and those that the policy holds itself."""
        own = own_tensors(self._policy)
        return {name: named_tensors(module) for name, module in self.models()} | ({"self": own} if own else {})

    def acting(self) -> NamedTensors:
        """Return what travels: what ``get_trainable_parameters`` lists, and the buffers of whole modules in it."""
        if self.lists_plainly:
            return self.of_models()
        return with_buffers(as_tensors(self._policy.get_trainable_parameters()), self.models())

    @property
    def version(self) -> int:
        """Version of the weights."""
        return self._policy.version

    @version.setter
    def version(self, version: int) -> None:
        self._policy.version = version

    @property
    def name(self) -> str:
        """Name of the policy, for messages."""
        return f"{self._policy.__class__.__name__} ({self._policy.role_type.value})"

    @property
    def device(self) -> str:
        """Torch device of the policy."""
        return self._policy.device

    @property
    def is_offloaded(self) -> bool:
        """Whether what acts is in host memory for a time."""
        return Part.MODEL in self._policy._memory.offloaded

    def require_init(self, method: str) -> None:
        """Raise a ``ProtocolError`` where there are no networks yet."""
        if not self._policy.is_init:
            raise ProtocolError(f"call init_{self._policy.role_type.value} before {method}")

    def load(self, tensors: NamedTensors, version: int) -> None:
        """Load by the author's ``load_state_dict`` what the author lists, and copy the buffers that are not listed."""
        policy = self._policy
        if self.lists_plainly:
            policy.load_state_dict(tensors)
            return
        listed = policy.get_trainable_parameters()
        acting, plain = with_buffers(listed, self.models()), plain_names(listed)
        given = {module: tensors.get(module, {}) for module in listed} if not all(listed.values()) else tensors
        left_out = flatten_names(acting).keys() - flatten_names(plain).keys()
        if left_out or flatten_names(plain).keys() != flatten_names(listed).keys():
            check_same_layout(flatten_names(acting), flatten_names(tensors), self.name, version)
            # Under the names that the author lists, with the prefixes of wrappers.
            given = {
                module: {name: tensors[module][key] for name, key in zip(named, plain[module], strict=True)}
                for module, named in listed.items()
            }
        policy.load_state_dict(given)
        with torch.no_grad():
            for module, name, tensor in each(acting):
                if f"{module}.{name}" in left_out:
                    tensor.copy_(tensors[module][name])

    def in_modules(self) -> list[torch.Tensor]:
        """List all parameters and buffers, persistent or not, each once."""
        tops = [self._policy, *(module for _, module in self.models())]
        tensors = [tensor for module in tops for tensor in (*module.parameters(), *module.buffers())]
        return list({id(tensor): tensor for tensor in tensors}.values())

    def of_optimizers(self) -> list[torch.Tensor]:
        """List the state of all optimizers, and what only they hold."""
        return [*optimizer_tensors(optimizers(self._policy)), *self.held().learned.values()]

    def held(self) -> Held:
        """Find all tensors that learn or act. A model may be held by something else than an attribute of the policy.

        ``nn.Module.state_dict`` of the policy itself would not do: Ray wraps an actor's methods, which torch takes for
        overridden ones.
        """
        policy = self._policy
        known = set(policy.modules())
        others = [(name, module) for name, module in self.models() if module not in known]
        tops = {name: named_tensors(module) for name, module in [*policy.named_children(), *others]}
        modules = flatten_names({**tops, "self": own_tensors(policy)})
        listed = {}
        if not self.lists_plainly:
            locations = set(map(_location, modules.values()))
            for name, tensor in flatten_names(self.acting()).items():
                if tensor.numel() and _location(tensor) not in locations:
                    listed[f"{name}{_LISTED}" if name in modules else name] = tensor
        return Held(modules, listed, optimizer_only(policy, [*self.in_modules(), *listed.values()]))

    def put_back(self, held: Held, given: Held, version: int) -> None:
        """Copy values into what the policy holds.

        Args:
            held: Its tensors, or some of them.
            given: Values by the same names.
            version: The version of the values, for messages.

        Raises:
            WeightSyncError: If names, shapes or dtypes differ; nothing is changed then.
        """
        policy, receiver = self._policy, self._policy.__class__.__name__
        check_same_layout(held.joined(), given.joined(), receiver, version)
        if held.listed:
            # By the author's method: what it lists may be made of other tensors. Modules get their own values last.
            values = given.listed
            policy._weight_port.load(
                {
                    module: {
                        name: values.get(f"{module}.{name}", values.get(f"{module}.{name}{_LISTED}", tensor))
                        for name, tensor in named.items()
                    }
                    for module, named in self.acting().items()
                },
                version,
            )
        own = {**held.modules, **held.learned}
        policy._weight_port.copy_in(own, {**given.modules, **given.learned}, receiver, version)

    def require_live(self, listed: Mapping[str, torch.Tensor]) -> None:
        """Check that what an author lists is what acts: copies lie in other memory each time that they are made.

        Raises:
            ProtocolError: If ``get_trainable_parameters`` returns copies.
        """
        again = flatten_names(as_tensors(self._policy.get_trainable_parameters()))
        copies = [name for name, held in listed.items() if name in again and held.data_ptr() != again[name].data_ptr()]
        if copies:
            raise ProtocolError(
                f"{self._policy.__class__.__name__}.get_trainable_parameters returns copies of "
                f"{', '.join(copies[:10])}: return the tensors themselves, as from named_parameters, or write "
                f"load_state_dict, too"
            )


def as_tensors(listed: Mapping[str, Mapping[str, Any]]) -> NamedTensors:
    """View the arrays among what an author lists as tensors.

    Raises:
        ProtocolError: If something is neither.
    """
    if all(isinstance(value, torch.Tensor) for named in listed.values() for value in named.values()):
        return {module: dict(named) for module, named in listed.items()}
    for module, named in listed.items():
        for name, value in named.items():
            if not isinstance(value, torch.Tensor | np.ndarray):
                raise ProtocolError(
                    f"get_trainable_parameters lists {module}.{name}, a {type(value).__name__}: make it a tensor or an "
                    f"array"
                )
    return {
        module: {
            name: value if isinstance(value, torch.Tensor) else torch.from_numpy(value) for name, value in named.items()
        }
        for module, named in listed.items()
    }


def _location(tensor: torch.Tensor) -> Any:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
