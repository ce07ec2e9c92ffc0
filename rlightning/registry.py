"""Registry of the classes that a configuration names: policies, simulators, buffers, callbacks and the like.

Built-in entries are dotted names, so that nothing heavy is imported before it is used. A user's module, listed under
``imports:``, adds entries::

    @register("policy", "my_algorithm")
    class MyPolicy(BasePolicy): ...
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from rlightning.errors import ConfigError, Problem, nearest_name

Kind = Literal["policy", "simulator", "buffer", "mujoco_task", "tokenizer", "callback", "model"]
T = TypeVar("T")

_ENTRIES: dict[Kind, dict[str, Any]] = {
    "policy": {"ppo": "rlightning.algorithms.ppo:PPO"},
    "simulator": {
        "gymnasium": "rlightning.simulators.gymnasium:GymnasiumEnv",
        "mujoco": "rlightning.simulators.mujoco.env:MujocoEnv",
    },
    "buffer": {"rollout": "rlightning.buffer.storage:RolloutBlock"},
    "callback": {"stop_at": "rlightning.engine.callbacks:StopAt", "video": "rlightning.engine.video:Video"},
    "model": {},
    "tokenizer": {"bytes": "rlightning.env.text:ByteTokenizer"},
    "mujoco_task": {
        f"{name}-v5": f"rlightning.simulators.mujoco.tasks.{module}:{name}"
        for module, task_names in {
            "ant": ["Ant"],
            "arms": ["Pusher", "Reacher"],
            "humanoids": ["Humanoid", "HumanoidStandup"],
            "pendulums": ["InvertedDoublePendulum", "InvertedPendulum"],
            "planar": ["HalfCheetah", "Hopper", "Walker2d"],
            "swimmer": ["Swimmer"],
        }.items()
        for name in task_names
    },
}
listed: set[str] = set()
"""Names of the modules that the user lists under ``imports:``; functions of these may build envs."""
_OPTION: dict[Kind, str] = {
    "policy": "policy.type",
    "simulator": "env.backend",
    "buffer": "buffer.type",
    "mujoco_task": "env.name",
    "tokenizer": "env.text.tokenizer",
    "callback": "callbacks",
    "model": "policy.model_cfg.encoder",
}


def register(kind: Kind, name: str) -> Callable[[T], T]:
    """Register a class under a name that a configuration can use.

    Args:
        kind: "policy", "simulator", "buffer", "tokenizer", "mujoco_task", "callback" or "model".
        name: The name in the configuration.

    Raises:
        ValueError: If the kind is unknown, or the name belongs to another object.
    """
    if kind not in _ENTRIES:
        raise ValueError(f"nothing of kind {kind!r} can be registered; kinds are {', '.join(_ENTRIES)}")

    def decorate(target: T) -> T:
        present = _ENTRIES[kind].get(name)
        if present is not None and _full_name(present) != _full_name(target):
            raise ValueError(f"{kind} {name!r} is {_full_name(present)} already")
        _ENTRIES[kind][name] = target
        return target

    return decorate


def lookup(kind: Kind, name: str) -> Any:
    """Return the object that is registered under a name.

    Raises:
        ConfigError: If no object of that kind has the name; the error suggests the nearest one.
    """
    entries = _ENTRIES[kind]
    if name not in entries:
        known = ", ".join(sorted(entries))
        message = f"no {kind} is called {name!r}; known: {known}; your own need their module under imports:"
        raise ConfigError(Problem(_OPTION[kind], message, suggestion=nearest_name(name, entries)))
    entry = entries[name]
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        entry = getattr(importlib.import_module(module), attribute)
    return entry


def argument_names(function: Callable[..., Any]) -> list[str] | None:
    """List the names of the arguments of a function or class; None if it takes any name."""
    parameters = inspect.signature(function).parameters
    return None if any(one.kind is one.VAR_KEYWORD for one in parameters.values()) else list(parameters)


def import_named(module: str, name: str, option: str) -> Any:
    """Import the module that a name in the configuration refers to.

    Args:
        module: The module.
        name: The whole name, for the message.
        option: Dotted path of the option with the name.

    Raises:
        ConfigError: If there is no such module.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        message = f"{name}: there is no module {error.name!r}; a file of your own goes under imports:"
        raise ConfigError(Problem(option, message)) from error


def names(kind: Kind) -> list[str]:
    """Return the names of one kind, sorted."""
    return sorted(_ENTRIES[kind])


def _full_name(entry: Any) -> str:
    return entry.replace(":", ".") if isinstance(entry, str) else f"{entry.__module__}.{entry.__qualname__}"
