"""The ``key=value`` arguments of the command line, in Hydra's grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from rlightning.configuring.compose import GroupChoice, group_options, is_group
from rlightning.configuring.sources import Sources, join
from rlightning.configuring.suggest import nearest_option
from rlightning.errors import Problem, nearest_name


@dataclass(frozen=True, slots=True)
class Setting:
    """One option that the command line sets or removes.

    Attributes:
        path: Dotted path, as it was written.
        value: The new value.
        argument: The argument of the command line.
        delete: Whether the option is removed instead.
    """

    path: str
    value: Any
    argument: str
    delete: bool = False


@dataclass(slots=True)
class Arguments:
    """What the arguments ask for, and what is wrong with them."""

    choices: list[GroupChoice] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def parse_arguments(overrides: Sequence[str], folders: Sequence[Path]) -> Arguments:
    """Parse all arguments, so that all mistakes are found at once.

    Whether an option exists is not judged here: ``+train.foo=1`` sets ``train.foo`` as ``train.foo=1`` does, and
    the validation refuses both.

    Args:
        overrides: Such as ``train.lr=1e-3``, ``cluster=ray``, ``~policy.model_cfg.encoder``.
        folders: The folders of presets; their sub-folders are the groups.
    """
    arguments = Arguments()
    parser = OverridesParser.create()
    for argument in overrides:
        try:
            override = parser.parse_override(argument)
        except HydraException as error:
            key, equals, _ = argument.partition("=")
            message = f"not readable: {error}" if equals else "an argument has the form key=value"
            nearest = nearest_option(key)
            arguments.problems.append(Problem(key, message, _where(argument), nearest if nearest != key else ""))
            continue
        _sort_in(override, argument, folders, arguments)
    return arguments


def apply_setting(tree: dict[str, Any], setting: Setting, sources: Sources) -> Problem | None:
    """Change a configuration tree as an argument asks.

    Sections that do not exist are made. ``env`` may be one env or a list: ``env.num_envs`` means the only one,
    ``env.0.num_envs`` the first.

    Returns:
        What is wrong, if there is something; the tree is then unchanged.
    """
    try:
        keys = _through_the_env_list(tree, setting.path.split("."))
        if setting.delete:
            _remove(tree, keys, setting.value)
        else:
            _put(tree, keys, setting.value)
            sources.record_argument(join(*keys), setting.value, setting.argument)
    except LookupError as error:
        suggestion = nearest_option(setting.path) if setting.delete else ""
        return Problem(setting.path, str(error.args[0]), _where(setting.argument), suggestion)
    return None


def _sort_in(override: Override, argument: str, folders: Sequence[Path], arguments: Arguments) -> None:
    key, where = override.key_or_group, _where(argument)
    if override.is_sweep_override():
        message = "several values are given, and a run takes one; a list is written [a,b]"
        arguments.problems.append(Problem(key, message, where))
        return
    value: Any = override.value()
    named = value if isinstance(value, list) else [value]
    if is_group(key, folders) and (override.is_delete() or all(isinstance(name, str) for name in named)):
        group_key = key if override.package is None else f"{key}@{override.package}"
        known = group_options(key, folders)
        unknown = [] if override.is_delete() else [name for name in named if name not in known]
        for name in unknown:
            message = f"no option {name!r}; known: {', '.join(known)}"
            arguments.problems.append(Problem(key, message, where, nearest_name(name, known)))
        if not unknown:
            arguments.choices.append(GroupChoice(group_key, None if override.is_delete() else value, argument))
    elif "/" in key or override.package is not None or not key:
        suggestion = nearest_option(key.replace("/", "."))
        arguments.problems.append(Problem(key, "no such group of configurations", where, suggestion))
    elif override.is_hydra_override():
        message = "Hydra only composes the configuration here; its own options have no meaning"
        arguments.problems.append(Problem(key, message, where))
    else:
        arguments.settings.append(Setting(key, value, argument, override.is_delete()))


def _where(argument: str) -> str:
    return f"command line: {argument}"


def _through_the_env_list(tree: dict[str, Any], keys: list[str]) -> list[str]:
    if keys[0] != "env" or len(keys) == 1:
        return keys
    envs, rest = tree.get("env"), keys[1:]
    indexed = rest[0].isdigit()
    if not isinstance(envs, list):
        if indexed and rest[0] != "0":
            raise LookupError(f"there is one env, and no env.{rest[0]}; write env=[{{...}},{{...}}] for a list")
        return ["env", *rest[1:]] if indexed else keys
    if indexed:
        return keys
    if len(envs) != 1:
        raise LookupError(f"there are {len(envs)} envs; say which one: env.0.{join(*rest)}")
    return ["env", "0", *rest]


def _put(tree: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    node: Any = tree
    for key in keys[:-1]:
        child = _child(node, key)
        if not isinstance(child, dict | list):
            child = {}
            _assign(node, key, child)
        node = child
    present = _child(node, keys[-1])
    _assign(node, keys[-1], merged(present, value))


def _remove(tree: dict[str, Any], keys: Sequence[str], expected: Any) -> None:
    node: Any = tree
    for key in keys[:-1]:
        node = _child(node, key)
    if not isinstance(node, dict) or keys[-1] not in node:
        raise LookupError("cannot be removed, because it is not set")
    if expected is not None and node[keys[-1]] != expected:
        raise LookupError(f"cannot be removed, because it is {node[keys[-1]]!r} and not {expected!r}")
    del node[keys[-1]]


def _child(node: Any, key: str) -> Any:
    if isinstance(node, list):
        if not key.isdigit() or int(key) >= len(node):
            raise LookupError(f"a list of {len(node)} has no item {key!r}")
        return node[int(key)]
    return node.get(key) if isinstance(node, dict) else None


def _assign(node: Any, key: str, value: Any) -> None:
    node[int(key) if isinstance(node, list) else key] = value


def merged(present: Any, value: Any) -> Any:
    """Lay one tree over another: sections are merged, all else is replaced.

    >>> merged({"lr": 1, "betas": [1, 2]}, {"betas": [3]})
    {'lr': 1, 'betas': [3]}
    """
    if not isinstance(present, dict) or not isinstance(value, dict):
        return value
    return {**present, **{key: merged(present.get(key), item) for key, item in value.items()}}
