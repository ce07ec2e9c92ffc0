"""Wrappers of Gymnasium around each sub-env, by name."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym

from rlightning.config import EnvConfig, WrapperConfig
from rlightning.errors import ConfigError, Problem

_UNFIT = {
    "Autoreset": "env workers start the next episode themselves",
    "ArrayConversion": "env workers take arrays of numpy",
    "JaxToNumpy": "env workers take plain envs",
    "JaxToTorch": "env workers take arrays of numpy",
    "NumpyToTorch": "env workers take arrays of numpy",
}
"""Wrappers of Gymnasium that change the interface, and why that does not fit."""

_REPEATS = {"AtariPreprocessing": "frame_skip", "MaxAndSkipObservation": "_skip", "RepeatAction": "num_repeats"}
"""Wrappers that make several steps of the env for one, and where they keep how many."""


def steps_inside(env: gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]) -> int:
    """Count the steps that the innermost env makes for one step of its wrappers."""
    count = 1
    while isinstance(env, gym.Wrapper):
        count *= getattr(env, _REPEATS.get(type(env).__name__, ""), 1)
        env = env.env
    return count


def wrap(env: gym.Env[Any, Any], config: EnvConfig) -> gym.Env[Any, Any]:
    """Put the wrappers of ``config`` around an env, the first one innermost.

    Raises:
        ConfigError: If a wrapper is not found, or cannot be built around the env.
    """
    for i, entry in enumerate(config.wrappers):
        wrapper = _find(entry.name, f"env.wrappers.{i}")
        try:
            env = wrapper(env, **deepcopy(entry.arguments))
        except gym.error.DependencyNotInstalled:
            raise
        except Exception as error:
            message = f"{entry.name} cannot be put around {config.name}: {type(error).__name__}: {error}"
            raise ConfigError(Problem(f"env.wrappers.{i}", message)) from error
    return env


def check_wrappers(config: EnvConfig) -> Sequence[Problem]:
    """List the wrappers that are not found, and arguments that they do not have."""
    problems: list[Problem] = []
    for i, entry in enumerate(config.wrappers):
        try:
            problems += _check_arguments(_find(entry.name, f"env.wrappers.{i}"), entry, f"env.wrappers.{i}.arguments")
        except ConfigError as error:
            problems += error.problems
    if config.wrappers and config.vectorization == "native":
        message = "env.wrappers are put around plain envs: use sync or auto"
        problems.append(Problem("env.vectorization", message))
    return problems


def _find(name: str, path: str) -> type[gym.Wrapper[Any, Any, Any, Any]]:
    module, _, attribute = name.rpartition(":")
    if name in _UNFIT:
        raise ConfigError(Problem(f"{path}.name", f"{name} cannot be used: {_UNFIT[name]}"))
    if not module and name not in gym.wrappers.__all__:
        nearest = difflib.get_close_matches(name, gym.wrappers.__all__, n=1)
        message = f"Gymnasium has no wrapper {name!r}; one of your own is named my_module:MyWrapper"
        raise ConfigError(Problem(f"{path}.name", message, suggestion=nearest[0] if nearest else ""))
    try:
        home: Any = importlib.import_module(module) if module else gym.wrappers
    except ModuleNotFoundError as error:
        message = f"{name}: there is no module {error.name!r}; a file of your own goes under imports:"
        raise ConfigError(Problem(f"{path}.name", message)) from error
    found = getattr(home, attribute, None)
    if not (inspect.isclass(found) and issubclass(found, gym.Wrapper)):
        known = [
            each for each, value in vars(home).items() if inspect.isclass(value) and issubclass(value, gym.Wrapper)
        ]
        nearest = difflib.get_close_matches(attribute, known, n=1)
        suggestion = f"{module}:{nearest[0]}" if nearest else ""
        raise ConfigError(Problem(f"{path}.name", f"{name} is no class of gymnasium.Wrapper", suggestion=suggestion))
    return found


def _check_arguments(wrapper: type[Any], entry: WrapperConfig, path: str) -> Sequence[Problem]:
    signature = inspect.signature(wrapper)
    known = list(signature.parameters)[1:]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    if unknown := [name for name in entry.arguments if not takes_any and name not in known]:
        nearest = difflib.get_close_matches(unknown[0], known, n=1)
        message = f"{entry.name} has no argument {unknown[0]!r}; it has {', '.join(known) or 'none'}"
        return [Problem(path, message, suggestion=f"{path}.{nearest[0]}" if nearest else "")]
    try:
        signature.bind(None, **entry.arguments)
    except TypeError as error:
        return [Problem(path, f"{entry.name}: {error}")]
    return ()
