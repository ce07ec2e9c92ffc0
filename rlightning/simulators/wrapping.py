"""Gymnasium wrappers around each sub-env, selected by name."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeGuard

import gymnasium as gym

from rlightning.config import EnvConfig, WrapperConfig
from rlightning.errors import ConfigError, Problem, nearest_name
from rlightning.registry import argument_names, import_named

_UNFIT = {
    "Autoreset": "env workers start the next episode themselves",
    "ArrayConversion": "env workers take arrays of numpy",
    "JaxToNumpy": "env workers take plain envs",
    "JaxToTorch": "env workers take arrays of numpy",
    "NumpyToTorch": "env workers take arrays of numpy",
}
"""Wrappers of Gymnasium that change the interface, and the reason why each is refused."""

_REPEATS = {"AtariPreprocessing": "frame_skip", "MaxAndSkipObservation": "_skip", "RepeatAction": "num_repeats"}
"""Wrappers that make several env steps per step, and the attribute with the number of steps."""


def steps_inside(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> int:
    """Return the number of steps of the innermost env per step of its wrappers."""
    count = 1
    while isinstance(env, gym.Wrapper):
        count *= getattr(env, _REPEATS.get(type(env).__name__, ""), 1)
        env = env.env
    return count


def wrap(env: gym.Env[Any, Any], config: EnvConfig) -> gym.Env[Any, Any]:
    """Apply the wrappers of ``config`` to an env, the first one innermost.

    Raises:
        ConfigError: If a wrapper is not found, or cannot be built around the env.
    """
    for i, entry in enumerate(config.wrappers):
        wrapper = _find(entry.name, f"env.wrappers.{i}.name")
        try:
            env = wrapper(env, **deepcopy(entry.arguments))
        except gym.error.DependencyNotInstalled:
            raise
        except Exception as error:
            message = f"{entry.name} cannot be put around {config.name}: {type(error).__name__}: {error}"
            raise ConfigError(Problem(f"env.wrappers.{i}", message)) from error
    return env


def check_wrappers(config: EnvConfig) -> Sequence[Problem]:
    """Return a problem for each wrapper that is not found, and for each argument that a wrapper lacks."""
    problems: list[Problem] = []
    for i, entry in enumerate(config.wrappers):
        try:
            wrapper = _find(entry.name, f"env.wrappers.{i}.name")
            problems += _check_arguments(wrapper, entry, f"env.wrappers.{i}.arguments")
        except ConfigError as error:
            problems += error.problems
    if config.wrappers and config.vectorization == "native":
        message = "env.wrappers are put around plain envs: use sync or auto"
        problems.append(Problem("env.vectorization", message))
    return problems


def _find(name: str, option: str) -> type[gym.Wrapper[Any, Any, Any, Any]]:
    module, _, attribute = name.rpartition(":")
    if name in _UNFIT:
        raise ConfigError(Problem(option, f"{name} cannot be used: {_UNFIT[name]}"))
    if not module and name not in gym.wrappers.__all__:
        message = f"Gymnasium has no wrapper {name!r}; one of your own is named my_module:MyWrapper"
        raise ConfigError(Problem(option, message, suggestion=nearest_name(name, gym.wrappers.__all__)))
    namespace: Any = import_named(module, name, option) if module else gym.wrappers
    found = getattr(namespace, attribute, None)
    if not _is_wrapper(found):
        known = [each for each, value in vars(namespace).items() if _is_wrapper(value)]
        message = f"{name} is no class of gymnasium.Wrapper"
        raise ConfigError(Problem(option, message, suggestion=nearest_name(attribute, known, f"{module}:")))
    return found


def _is_wrapper(value: Any) -> TypeGuard[type[gym.Wrapper[Any, Any, Any, Any]]]:
    return inspect.isclass(value) and issubclass(value, gym.Wrapper)


def _check_arguments(wrapper: type[Any], entry: WrapperConfig, option: str) -> Sequence[Problem]:
    known = argument_names(wrapper)
    if known is not None and (unknown := [name for name in entry.arguments if name not in known[1:]]):
        known = known[1:]  # the first one is the env
        message = f"{entry.name} has no argument {unknown[0]!r}; it has {', '.join(known) or 'none'}"
        return [Problem(option, message, suggestion=nearest_name(unknown[0], known, f"{option}."))]
    try:
        inspect.signature(wrapper).bind(None, **entry.arguments)
    except TypeError as error:
        return [Problem(option, f"{entry.name}: {error}")]
    return ()
