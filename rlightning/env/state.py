"""The state of an env as plain data that a checkpoint can hold: no pickle, no code.

``capture`` walks an object's attributes and describes what it finds; ``restore`` writes a description into an object
that was built the same way. Numbers, texts, arrays, random generators, collections and objects of Python classes are
described. Anything else that may change makes the whole object "not stored": half a state would continue differently
without a word. So does a module that imports a compiled library, whose state may lie behind a number. Such an env has
``get_state`` and ``set_state`` of its own, or a resumed run begins new episodes.
"""

from __future__ import annotations

import dis
import logging
import math
import random
import re
import sys
from collections import deque
from collections.abc import Callable
from enum import Enum
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from pydantic import BaseModel

from rlightning.env.arrays import Leaf
from rlightning.env.text import Tokenizer
from rlightning.errors import CheckpointError
from rlightning.types import EnvMeta

_log = logging.getLogger(__name__)

Node = Any
"""A description: None, a bool, number or string as it is, or a dict with its ``kind``."""


class NotStorable(Exception):
    """Something may change and cannot be described; the message names it."""


_CONSTANT_TYPES: Any = (BaseModel, EnvMeta, EnvSpec, Leaf, PurePath, Tokenizer, logging.Logger, np.dtype, re.Pattern)
_CONSTANT_TYPES += (ModuleType, type)
"""What the constructor of an env makes and no step changes."""
_CONSTANT_PACKAGES = {"glfw", "pygame", "typing"}
"""Packages whose objects only draw, or only annotate."""
_STATELESS_PACKAGES = {"cv2", "numpy", "PIL", "scipy", "torch", *sys.stdlib_module_names}
"""Packages with compiled code that computes and keeps nothing."""
_FOREIGN: dict[str, tuple[Callable[[Any], Node], Callable[[Any, Node], None]]] = {}
_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
}


def keep_package(package: str) -> None:
    """Declare all objects of a package constant, except those that ``describe_class`` names."""
    _CONSTANT_PACKAGES.add(package)


def describe_class(name: str, capture: Callable[[Any], Node], restore: Callable[[Any, Node], None]) -> None:
    """Declare how to store objects of a class that is not written in Python.

    Args:
        name: Full name of the class.
        capture: Describes an object.
        restore: Writes a description into an object.
    """
    _FOREIGN[name] = capture, restore


def capture(value: Any) -> dict[str, Any] | None:
    """Describe ``value`` and all that it refers to.

    Returns:
        Nested dicts and lists of arrays, numbers and strings; None if a part cannot be described (the log says which).
    """
    try:
        return {"root": _Capture().node(value, type(value).__name__)}
    except NotStorable as reason:
        _log.info("the state of %s is not stored: %s", type(value).__name__, reason)
        return None


def restore(state: dict[str, Any], existing: Any = None) -> Any:
    """Rebuild what was described.

    Args:
        state: What ``capture`` returned.
        existing: The object to write into; needed where objects of classes are part of the state. Lists, dicts and
            random generators in it keep their identity.

    Returns:
        ``existing``, or a new value where it could not be written into.

    Raises:
        CheckpointError: If the state does not fit ``existing``.
    """
    name = type(existing).__name__
    try:
        return _Restore().value(state["root"], existing, name)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the state of {name} cannot be restored: {type(error).__name__}: {error}") from error


class _Capture:
    """One walk over an object; numbers what it visits, so that shared parts are shared again afterwards."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by id
        self._visited: list[Any] = []  # held, so that no id is used twice
        self._arrays: dict[int, list[np.ndarray[Any, Any]]] = {}  # by id of the array that owns the bytes

    def node(self, value: Any, path: str) -> Node:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"kind": "float", "text": repr(value)}
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return {"kind": "scalar", "value": np.array(value)}
        if isinstance(value, Enum):
            return {"kind": "enum", "class": kind.__qualname__, "name": value.name}
        if kind is tuple or (isinstance(value, tuple) and hasattr(value, "_fields")):
            return {"kind": "tuple", "named": kind is not tuple, "items": self._items(value, path)}
        if kind in (set, frozenset):
            return {"kind": kind.__name__, "items": self._items(sorted(value, key=repr), path)}
        if isinstance(value, MethodType) and not self._holds(value.__self__):
            raise NotStorable(f"{path} is a method of an object that is not stored before it")
        if _is_constant(value):
            return {"kind": "kept"}
        if id(value) in self._numbers:
            return {"kind": "same", "id": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._visited)
        self._visited.append(value)
        return {"id": number, **self._describe(value, path)}

    def _holds(self, value: Any) -> bool:
        return _is_constant(value) or (id(value) in self._numbers and _is_python_object(value))

    def _describe(self, value: Any, path: str) -> dict[str, Any]:
        kind, name = type(value), _full_name(type(value))
        if kind is np.ndarray:
            return self._array(value, path)
        if kind is list:
            return {"kind": "list", "items": self._items(value, path)}
        if kind is deque:
            return {"kind": "deque", "maxlen": value.maxlen, "items": self._items(value, path)}
        if kind is dict:
            keys = self._items(value, f"{path}.keys()")
            return {"kind": "dict", "keys": keys, "items": self._items(value.values(), path)}
        if kind is np.random.Generator and type(value.bit_generator) in _BIT_GENERATORS.values():
            bits = value.bit_generator
            return {"kind": "generator", "name": type(bits).__name__, "state": bits.state}
        if kind is np.random.RandomState:
            return {"kind": "random_state", "state": value.get_state(legacy=False)}
        if kind is random.Random:
            return {"kind": "random", "state": self.node(value.getstate(), path)}
        if name in _FOREIGN:
            return {"kind": "foreign", "class": name, "state": _FOREIGN[name][0](value)}
        if not _is_python_object(value):
            raise NotStorable(f"{path} is a {name}")
        if libraries := _compiled_libraries(kind):
            raise NotStorable(f"{path} is a {name}, whose module uses {', '.join(libraries)}")
        attributes = {
            name: self.node(part, f"{path}.{name}")
            for name, part in sorted(vars(value).items())
            if isinstance(part, MethodType) or not _is_constant(part)
        }
        return {"kind": "object", "class": name, "attributes": attributes}

    def _items(self, values: Any, path: str) -> list[Node]:
        return [self.node(value, f"{path}[{i}]") for i, value in enumerate(values)]

    def _array(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        if array.dtype.kind not in "biuf":
            raise NotStorable(f"{path} is an array of {array.dtype}")
        owner: Any = array
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        if not isinstance(owner, np.ndarray | bytes):
            raise NotStorable(f"{path} is an array in the memory of a {_full_name(type(owner))}")
        # Rows of one array are apart: what is written into one is not seen in another.
        others = self._arrays.setdefault(id(owner), [])
        if any(np.may_share_memory(array, other) for other in others):
            raise NotStorable(f"{path} shares its memory with another array")
        others.append(array)
        # A sum depends on the order in which the numbers lie in memory.
        fortran = bool(array.flags.f_contiguous and not array.flags.c_contiguous)
        return {"kind": "array", "value": np.array(array, order="C"), "fortran": fortran}


class _Restore:
    """One walk over a description and the object that it goes into."""

    def __init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._taken: set[int] = set()

    def value(self, node: Node, existing: Any, path: str) -> Any:
        if not isinstance(node, dict):
            return node
        kind = node["kind"]
        if kind == "kept":
            return existing
        if kind == "same":
            return self._values[node["id"]]
        if kind == "float":
            return float(node["text"])
        if kind == "scalar":
            return np.asarray(node["value"])[()]
        if kind == "enum":
            if not isinstance(existing, Enum) or type(existing).__qualname__ != node["class"]:
                raise _misfit(path, node["class"], existing)
            return type(existing)[node["name"]]
        if kind == "tuple":
            items = self._items(node, existing if isinstance(existing, tuple) else (), path)
            if node["named"] and not hasattr(existing, "_fields"):
                raise _misfit(path, "named tuple", existing)
            return type(existing)(*items) if node["named"] else tuple(items)
        if kind in ("set", "frozenset"):
            return (set if kind == "set" else frozenset)(self._items(node, (), path))
        # Two parts that are one object in ``existing`` may have been two when the state was taken.
        if id(existing) in self._taken:
            existing = None
        target = _target(node, existing, path)
        self._values[node["id"]] = target
        self._taken.add(id(target))
        self._fill(node, target, existing, path)
        return target

    def _fill(self, node: Node, target: Any, existing: Any, path: str) -> None:
        kind = node["kind"]
        if kind in ("list", "deque"):
            items = self._items(node, list(existing) if isinstance(existing, list | deque) else (), path)
            target.clear()
            target.extend(items)
        elif kind == "dict":
            keys = [self.value(key, None, path) for key in node["keys"]]
            old = [existing.get(key) for key in keys] if isinstance(existing, dict) else ()
            items = self._items(node, old, path)
            target.clear()
            target.update(zip(keys, items, strict=True))
        elif kind == "generator":
            target.bit_generator.state = node["state"]
        elif kind == "random_state":
            target.set_state(node["state"])
        elif kind == "random":
            target.setstate(self.value(node["state"], None, path))
        elif kind == "foreign":
            _FOREIGN[node["class"]][1](target, node["state"])
        elif kind == "object":
            attributes, present = node["attributes"], vars(target)
            for name in [name for name, part in present.items() if name not in attributes and not _is_constant(part)]:
                del present[name]
            for name in sorted(attributes):
                present[name] = self.value(attributes[name], present.get(name), f"{path}.{name}")

    def _items(self, node: Node, existing: Any, path: str) -> list[Any]:
        nodes = node["items"]
        old = list(existing) if len(existing) == len(nodes) else [None] * len(nodes)
        pairs = enumerate(zip(nodes, old, strict=True))
        return [self.value(item, before, f"{path}[{i}]") for i, (item, before) in pairs]


def _target(node: Node, existing: Any, path: str) -> Any:
    """Return what a description is written into: ``existing`` where it is of that kind, else a new value."""
    kind = node["kind"]
    if kind == "array":
        return np.array(np.asarray(node["value"]), order="F" if node["fortran"] else "C")
    if kind in ("object", "foreign"):
        if _full_name(type(existing)) != node["class"] or (kind == "foreign" and node["class"] not in _FOREIGN):
            raise _misfit(path, node["class"], existing)
        return existing
    if kind == "deque":
        fits = type(existing) is deque and existing.maxlen == node["maxlen"]
        return existing if fits else deque(maxlen=node["maxlen"])
    if kind == "generator":
        bits = _BIT_GENERATORS[node["name"]]
        fits = type(existing) is np.random.Generator and type(existing.bit_generator) is bits
        return existing if fits else np.random.Generator(bits())
    makers = {"list": list, "dict": dict, "random": random.Random, "random_state": np.random.RandomState}
    maker: Any = makers[kind]
    return existing if type(existing) is maker else maker()


def _misfit(path: str, wanted: str, existing: Any) -> CheckpointError:
    return CheckpointError(
        f"{path}: the state holds a {wanted} and there is a {_full_name(type(existing))} here; a state fits only an "
        f"env that is built the same way, by the same versions of its packages"
    )


def _is_constant(value: Any) -> bool:
    """Whether no step changes a value, so that a fresh env has it as it was."""
    if isinstance(value, gym.Space):
        return not _was_sampled(value)
    if isinstance(value, (*_CONSTANT_TYPES, MethodType)):
        return True
    if isinstance(value, FunctionType):
        # Functions of Gymnasium's wrappers refer to spaces, bounds and the wrapper itself.
        return _root(value.__module__) == "gymnasium" or not (value.__closure__ and _keeps_variables(value))
    if isinstance(value, BuiltinFunctionType):
        return isinstance(value.__self__, ModuleType)
    name = _full_name(type(value))
    return _root(name) in _CONSTANT_PACKAGES and name not in _FOREIGN


def _keeps_variables(function: FunctionType) -> bool:
    """Whether a function changes a variable of an outer function, or one of them holds what may change."""
    try:
        held = [cell.cell_contents for cell in function.__closure__ or ()]
    except ValueError:  # a variable without a value yet
        return True
    is_fixed = all(isinstance(value, (type(None), bool, int, float, str, *_CONSTANT_TYPES)) for value in held)
    return not is_fixed or any(step.opname == "STORE_DEREF" for step in dis.get_instructions(function))


def _was_sampled(space: gym.Space[Any]) -> bool:
    """Whether a space has a random generator that was used."""
    parts = getattr(space, "spaces", ())
    parts = parts.values() if isinstance(parts, dict) else parts
    return getattr(space, "_np_random", None) is not None or any(_was_sampled(part) for part in parts)


class _Plain:
    """A class that is written in Python and has no slots, for the size of its instances."""


def _is_python_object(value: Any) -> bool:
    """Whether all that an object holds is in its ``__dict__``; classes of the standard library may hold files."""
    kind = type(value)
    is_plain = hasattr(value, "__dict__") and (kind.__basicsize__, kind.__itemsize__) == (_Plain.__basicsize__, 0)
    return is_plain and _root(kind.__module__) not in sys.stdlib_module_names


def _compiled_libraries(kind: type[Any]) -> list[str]:
    """List the compiled modules that the modules of a class import, except those that keep no state."""
    found = set()
    for base in kind.__mro__:
        for value in vars(sys.modules.get(base.__module__, object)).values():
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
            if isinstance(value, ModuleType | BuiltinFunctionType) and _root(name) not in _STATELESS_PACKAGES:
                origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
                if str(origin).endswith(tuple(EXTENSION_SUFFIXES)) and _root(name) not in _CONSTANT_PACKAGES:
                    found.add(name)
    return sorted(found)


def _root(module_name: str) -> str:
    return module_name.partition(".")[0]


def _full_name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
