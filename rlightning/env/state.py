"""The state of Python objects as plain data that a checkpoint can hold: no pickle, no code.

``capture`` walks an object's attributes and describes what it finds; ``restore`` writes a description into an object
that was built the same way. Something that changes and cannot be described makes the whole object "not stored":
half a state would go on differently without a word. So do signs of a state that lies elsewhere: a class of Python's
own library (pipes, processes, sockets), and a module that uses a compiled library whose objects are not described here.
"""

from __future__ import annotations

import logging
import math
import random
import re
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
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
    """Something that changes and cannot be described; says what."""


class _Plain:
    """Measures how large an instance of a class is that is written in Python and has no slots."""


_KEPT_TYPES: tuple[type[Any], ...] = (
    BaseModel,
    EnvMeta,
    EnvSpec,
    Leaf,
    ModuleType,
    PurePath,
    Tokenizer,
    logging.Logger,
    np.dtype,
    re.Pattern,
    type,
)
"""What the constructor of an env makes and no step changes."""
_IMMUTABLE_TYPES = (type(None), bool, int, float, complex, str, bytes)
_KEPT_PACKAGES = {"glfw", "pygame", "typing"}
"""Packages whose objects only draw, or only annotate."""
_STATELESS_PACKAGES = {"cv2", "numpy", "PIL", "scipy", "torch"}
"""Compiled packages that compute and keep nothing."""
_FOREIGN: dict[str, tuple[Callable[[Any], Node], Callable[[Any, Node], None]]] = {}
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def keep_package(package: str) -> None:
    """Take all objects of a package for unchanging, except those that ``describe_class`` names."""
    _KEPT_PACKAGES.add(package)


def describe_class(name: str, capture: Callable[[Any], Node], restore: Callable[[Any, Node], None]) -> None:
    """Say how to store objects of a class that is not written in Python.

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
    """One walk over an object; remembers what it saw, so that shared parts are shared again afterwards."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._memory: dict[int, dict[int, np.ndarray[Any, Any]]] = {}
        self._seen: list[Any] = []

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
        if _is_kept(value):
            return {"kind": "kept"}
        if kind is partial:
            arguments = self._items((value.func, value.args, value.keywords), path)
            return {"kind": "partial", "items": arguments}
        return self._mutable(value, path)

    def _mutable(self, value: Any, path: str) -> Node:
        if id(value) in self._numbers:
            return {"kind": "same", "id": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._seen)
        self._seen.append(value)
        return {"id": number, **self._describe(value, path)}

    def _describe(self, value: Any, path: str) -> dict[str, Any]:
        kind = type(value)
        if kind is np.ndarray:
            return self._array(value, path)
        if kind is FunctionType:
            return {"kind": "function", "name": value.__qualname__, "items": self._cell_items(value, path)}
        if kind in (MethodType, BuiltinFunctionType) and type(value.__self__) is not np.ndarray:
            return {"kind": "method", "name": value.__name__, "items": self._items((value.__self__,), path)}
        if kind is list:
            return {"kind": "list", "items": self._items(value, path)}
        if kind is deque:
            return {"kind": "deque", "maxlen": value.maxlen, "items": self._items(value, path)}
        if kind is dict:
            keys = self._items(value, f"{path}.keys()")
            return {"kind": "dict", "keys": keys, "items": self._items(value.values(), path)}
        if kind is np.random.Generator:
            name = type(value.bit_generator).__name__
            if name in _BIT_GENERATORS:
                return {"kind": "generator", "name": name, "state": value.bit_generator.state}
        if kind is np.random.RandomState:
            return {"kind": "random_state", "state": value.get_state(legacy=False)}
        if kind is random.Random:
            return {"kind": "random", "state": self.node(value.getstate(), path)}
        if _full_name(kind) in _FOREIGN:
            return {"kind": "foreign", "class": _full_name(kind), "state": _FOREIGN[_full_name(kind)][0](value)}
        if not _is_plain_object(value):
            raise NotStorable(f"{path} is a {_full_name(kind)}")
        if outside := _outside_libraries(kind):
            raise NotStorable(f"{path} is a {_full_name(kind)}, whose module uses {', '.join(outside)}")
        parts = {name: part for name, part in sorted(vars(value).items()) if not _is_kept(part)}
        attributes = {name: self.node(part, f"{path}.{name}") for name, part in parts.items()}
        return {"kind": "object", "class": _full_name(kind), "attributes": attributes}

    def _cell_items(self, function: FunctionType, path: str) -> list[Node]:
        return self._items([cell.cell_contents for cell in _cells(function)], path)

    def _items(self, values: Any, path: str) -> list[Node]:
        return [self.node(value, f"{path}[{i}]") for i, value in enumerate(values)]

    def _array(self, array: np.ndarray[Any, Any], path: str) -> dict[str, Any]:
        if array.dtype.kind not in "biuf":
            raise NotStorable(f"{path} is an array of {array.dtype}")
        owner = _owner(array)
        is_view = _is_foreign(owner)
        neighbours = self._memory.setdefault(id(owner), {})
        # Rows of one array are apart: what is written into one is not seen in another.
        if not is_view and any(
            np.may_share_memory(array, other) for other in neighbours.values() if other is not array
        ):
            raise NotStorable(f"{path} shares its memory with another array")
        neighbours[id(array)] = array
        self._seen.append(owner)
        # A sum depends on the order in which the numbers lie in memory.
        fortran = bool(array.flags.f_contiguous and not array.flags.c_contiguous)
        return {"kind": "array", "value": np.array(array, order="C"), "fortran": fortran, "view": is_view}


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
        if kind == "same":
            return self._values[node["id"]]
        if kind == "partial":
            if type(existing) is not partial:
                raise _misfit(path, "partial function", existing)
            function, arguments, named = self._items(node, (existing.func, existing.args, existing.keywords), path)
            return partial(function, *arguments, **named)
        return self._mutable(node, existing, path)

    def _mutable(self, node: Node, existing: Any, path: str) -> Any:
        # Two parts that are one object in ``existing`` may have been two when the state was taken.
        if id(existing) in self._taken:
            existing = None
        target = _MAKERS[node["kind"]](node, existing, path)
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
        elif kind == "function":
            cells = _cells(target)
            items = self._items(node, [cell.cell_contents for cell in cells], path)
            for cell, item in zip(cells, items, strict=True):
                cell.cell_contents = item
        elif kind == "method":
            # Its object is written into where it is.
            if self._items(node, (target.__self__,), path)[0] is not target.__self__:
                raise _misfit(path, f"method {node['name']} of an object of its own", existing)
        elif kind == "generator":
            target.bit_generator.state = node["state"]
        elif kind == "random_state":
            target.set_state(node["state"])
        elif kind == "random":
            target.setstate(self.value(node["state"], None, path))
        elif kind == "foreign":
            _FOREIGN[node["class"]][1](target, node["state"])
        elif kind == "object":
            self._fill_object(node["attributes"], vars(target), path)

    def _fill_object(self, attributes: dict[str, Node], present: dict[str, Any], path: str) -> None:
        for name in [name for name, value in present.items() if name not in attributes and not _is_kept(value)]:
            del present[name]
        for name in sorted(attributes):
            present[name] = self.value(attributes[name], present.get(name), f"{path}.{name}")

    def _items(self, node: Node, existing: Any, path: str) -> list[Any]:
        nodes = node["items"]
        old = list(existing) if len(existing) == len(nodes) else [None] * len(nodes)
        return [
            self.value(item, before, f"{path}[{i}]") for i, (item, before) in enumerate(zip(nodes, old, strict=True))
        ]


def _make_array(node: Node, existing: Any, path: str) -> Any:
    value = np.asarray(node["value"])
    if not node["view"]:
        return np.array(value, order="F" if node["fortran"] else "C")
    if type(existing) is not np.ndarray or existing.shape != value.shape or not _is_foreign(_owner(existing)):
        raise _misfit(path, f"view of shape {list(value.shape)} into a simulator's memory", existing)
    existing[...] = value
    return existing


def _make_deque(node: Node, existing: Any, path: str) -> Any:
    fits = type(existing) is deque and existing.maxlen == node["maxlen"]
    return existing if fits else deque(maxlen=node["maxlen"])


def _make_generator(node: Node, existing: Any, path: str) -> Any:
    if type(existing) is np.random.Generator and type(existing.bit_generator).__name__ == node["name"]:
        return existing
    if node["name"] not in _BIT_GENERATORS:
        raise CheckpointError(f"{path}: there is no bit generator {node['name']!r}")
    return np.random.Generator(getattr(np.random, node["name"])())


def _make_object(node: Node, existing: Any, path: str) -> Any:
    if _full_name(type(existing)) != node["class"] or (node["kind"] == "foreign" and node["class"] not in _FOREIGN):
        raise _misfit(path, node["class"], existing)
    return existing


def _make_function(node: Node, existing: Any, path: str) -> Any:
    kinds = (FunctionType,) if node["kind"] == "function" else (MethodType, BuiltinFunctionType)
    name = getattr(existing, "__qualname__" if node["kind"] == "function" else "__name__", None)
    if type(existing) not in kinds or name != node["name"]:
        raise _misfit(path, f"{node['kind']} {node['name']}", existing)
    return existing


def _maker_of(kind: type[Any]) -> Callable[[Node, Any, str], Any]:
    return lambda node, existing, path: existing if type(existing) is kind else kind()


_MAKERS: dict[str, Callable[[Node, Any, str], Any]] = {
    "array": _make_array,
    "deque": _make_deque,
    "dict": _maker_of(dict),
    "foreign": _make_object,
    "function": _make_function,
    "generator": _make_generator,
    "list": _maker_of(list),
    "method": _make_function,
    "object": _make_object,
    "random": _maker_of(random.Random),
    "random_state": _maker_of(np.random.RandomState),
}


def _misfit(path: str, wanted: str, existing: Any) -> CheckpointError:
    return CheckpointError(
        f"{path}: the state holds a {wanted} and there is a {_full_name(type(existing))} here; a state fits only an "
        f"env that is built the same way, by the same versions of its packages"
    )


def _is_kept(value: Any) -> bool:
    if isinstance(value, gym.Space):
        return not _draws(value)
    if isinstance(value, _KEPT_TYPES):
        return True
    if isinstance(value, FunctionType):
        return not _cells(value)
    if isinstance(value, MethodType | BuiltinFunctionType):
        return isinstance(value.__self__, _IMMUTABLE_TYPES) or _is_kept(value.__self__)
    if isinstance(value, partial):
        arguments = (value.func, *value.args, *value.keywords.values())
        return all(isinstance(each, _IMMUTABLE_TYPES) or _is_kept(each) for each in arguments)
    name = _full_name(type(value))
    return _root(name) in _KEPT_PACKAGES and name not in _FOREIGN


def _cells(function: FunctionType) -> list[CellType]:
    """List the variables of other functions that a function uses, those that hold something."""
    held = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it holds nothing yet
            held.append((cell, cell.cell_contents))
    return [cell for cell, _ in held]


def _draws(space: gym.Space[Any]) -> bool:
    """Tell whether someone sampled from a space, which then has a random generator that goes on."""
    parts = getattr(space, "spaces", ())
    parts = parts.values() if isinstance(parts, dict) else parts
    return getattr(space, "_np_random", None) is not None or any(_draws(part) for part in parts)


def _is_plain_object(value: Any) -> bool:
    """Tell whether all that an object holds is in its ``__dict__``: it is written in Python, without slots."""
    kind = type(value)
    is_python = hasattr(value, "__dict__") and kind.__basicsize__ == _Plain.__basicsize__ and kind.__itemsize__ == 0
    return is_python and _root(kind.__module__) not in sys.stdlib_module_names


def _outside_libraries(kind: type[Any]) -> tuple[str, ...]:
    """List compiled modules that the modules of a class use: a simulator may keep a state there, known by a number."""
    found = set()
    for module_name in {base.__module__ for base in kind.__mro__}:
        for value in vars(sys.modules.get(module_name, object)).values():
            origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(value, ModuleType | BuiltinFunctionType) and _is_outside(origin):
                found.add(str(origin))
    return tuple(sorted(found))


def _is_outside(module_name: str | None) -> bool:
    root = _root(module_name or "")
    if root in _KEPT_PACKAGES or root in _STATELESS_PACKAGES or root in sys.stdlib_module_names:
        return False
    spec = getattr(sys.modules.get(module_name or ""), "__spec__", None)
    return str(getattr(spec, "origin", "")).endswith(tuple(EXTENSION_SUFFIXES))


def _root(module_name: str) -> str:
    return module_name.partition(".")[0]


def _owner(array: np.ndarray[Any, Any]) -> Any:
    """Find what owns an array's memory: the array at the end of its chain of bases, or a simulator's object."""
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def _is_foreign(owner: Any) -> bool:
    return not isinstance(owner, np.ndarray)


def _full_name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
