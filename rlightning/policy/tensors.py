"""The tensors of a policy, and their names."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
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
_LISTED = " (listed)"
"""Suffix that distinguishes the name of a tensor that an author lists from an equal one of a module."""


class ModuleTensors:
    """Lists the tensors of a policy's modules, by names that are free of the prefixes of wrappers.

    Modules are walked through again only where something in them was replaced, added or removed: with thousands of
    tensors that walk would take longer than all else that a push of weights takes.
    """

    def __init__(self) -> None:
        self._models: list[tuple[str, nn.Module]] = []
        self._own: _OwnTensors | None = None
        self._held: list[_Held] | None = None  # None where changes cannot be seen
        self._named: NamedTensors = {}

    def of(self, policy: nn.Module, models: Sequence[tuple[str, nn.Module]]) -> NamedTensors:
        """Return the parameters and buffers of some modules of a policy, and those that it holds itself.

        Returns:
            Module name -> tensor name -> the live tensor: the same dicts as before if they are the same tensors.
        """
        own = self._own
        is_known = own is not None and own.is_of(policy) and self._models == models and self._held is not None
        if not is_known or not all(map(_Held.is_unchanged, self._held or ())):
            self._walk(policy, models)
        return self._named

    def _walk(self, policy: nn.Module, models: Sequence[tuple[str, nn.Module]]) -> None:
        # Another thread may ask meanwhile: until all is noted down, it walks by itself.
        self._held = None
        own = _OwnTensors(policy)
        tops = [*models, ("self", own)] if policy._parameters or policy._buffers else list(models)
        self._named = {name: _plain(module, module.state_dict(keep_vars=True)) for name, module in tops}
        self._models, self._own = list(models), own
        modules = {id(module): module for top in (*(module for _, module in tops), own) for module in top.modules()}
        if all(map(_has_plain_state, modules.values())):
            self._held = list(map(_Held, modules.values()))


class _Held:
    """What a module holds at a time; it is kept, so that no other object can get the identity of one."""

    __slots__ = ("_ids", "_members", "_module", "_names", "_not_kept")

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._names, self._members = self._look()
        self._ids = list(map(id, self._members))
        self._not_kept = set(module._non_persistent_buffers_set)

    def _look(self) -> tuple[list[str], list[Any]]:
        parameters, buffers, modules = self._module._parameters, self._module._buffers, self._module._modules
        return [*parameters, *buffers, *modules], [*parameters.values(), *buffers.values(), *modules.values()]

    def is_unchanged(self) -> bool:
        """Whether the module holds the very same objects by the same names, and its state dict follows from them."""
        names, members = self._look()
        module = self._module
        return (
            list(map(id, members)) == self._ids
            and names == self._names
            and module._non_persistent_buffers_set == self._not_kept
            and not (module._state_dict_hooks or module._state_dict_pre_hooks)
        )


def _has_plain_state(module: nn.Module) -> bool:
    """Whether a module's state dict follows from what it holds, since no method for it is overridden."""
    kind = type(module)
    is_plain = all(
        getattr(kind, name) is getattr(nn.Module, name)
        for name in ("state_dict", "_save_to_state_dict", "get_extra_state")
    )
    return (
        is_plain and "state_dict" not in vars(module) and not (module._state_dict_hooks or module._state_dict_pre_hooks)
    )


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
        if _plain(module, dict(module.named_parameters(remove_duplicate=False))).keys() <= named.keys():
            state = _plain(module, module.state_dict(keep_vars=True))
            whole[name] = {**named, **{key: value for key, value in state.items() if key not in named}}
    return whole


def plain_names(given: NamedTensors) -> NamedTensors:
    """Remove the prefixes of wrappers from the names that an author lists, where they stay different."""
    plain = {
        module: {strip_wrappers(name): tensor for name, tensor in named.items()} for module, named in given.items()
    }
    return {module: plain[module] if len(plain[module]) == len(named) else named for module, named in given.items()}


def _plain(module: nn.Module, named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove the prefixes of wrappers from the names of a module's tensors.

    Raises:
        ProtocolError: If a module keeps something else besides, which would neither travel nor be loaded.
    """
    if extra := [name for name in named if name.rpartition(".")[2] == _EXTRA]:
        raise ProtocolError(
            f"a module has a get_extra_state ({', '.join(extra)}), which does not travel: what acts are parameters and "
            f"buffers, so make it a buffer; what only training needs, extra_training_state keeps"
        )
    plain = {strip_wrappers(name): tensor for name, tensor in named.items()}
    if len(plain) == len(named):
        return plain
    # A module of the author's calls a part of itself as wrappers do, and two of its tensors would have one name.
    return {_without_wrappers(module, name): tensor for name, tensor in named.items()}


def _without_wrappers(module: nn.Module, name: str) -> str:
    """Remove from a name just what torch's own wrappers, found on the way to the tensor, have put there.

    >>> _without_wrappers(nn.Sequential(nn.DataParallel(nn.Linear(1, 1))), "0.module.weight")
    '0.weight'
    """
    kept, held = [], module
    for part in name.split("."):
        wraps = part == "module" and isinstance(held, nn.DataParallel | nn.parallel.DistributedDataParallel)
        if not wraps and part not in ("_orig_mod", "_fsdp_wrapped_module"):
            kept.append(part)
        held = getattr(held, part)
    return ".".join(kept)


class Held(NamedTuple):
    """All tensors that learn or act, by what holds them; no name is in two of the parts.

    Attributes:
        modules: Parameters and buffers that are kept, those of no model included; names as in ``ModuleTensors``.
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
        self._module_tensors = ModuleTensors()
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
        return self._module_tensors.of(self._policy, self.models())

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
        tops = [*policy.named_children(), *others, ("self", _OwnTensors(policy))]
        modules = flatten_names({name: _plain(module, module.state_dict(keep_vars=True)) for name, module in tops})
        listed = {}
        if not self.lists_plainly:
            places = set(map(_place, modules.values()))
            for name, tensor in flatten_names(self.acting()).items():
                if tensor.numel() and _place(tensor) not in places:
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


def _place(tensor: torch.Tensor) -> Any:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class _OwnTensors(nn.Module):
    """The parameters and buffers that a policy holds itself, outside of its sub-modules."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self._parameters = policy._parameters
        self._buffers = policy._buffers
        self._non_persistent_buffers_set = policy._non_persistent_buffers_set

    def is_of(self, policy: nn.Module) -> bool:
        """Whether these are the tensors that the policy holds now."""
        return self._parameters is policy._parameters and self._buffers is policy._buffers
