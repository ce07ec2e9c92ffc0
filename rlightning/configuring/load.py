"""From the name of a preset and the arguments of the command line to a validated configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from rlightning.config import Config, EnvConfig
from rlightning.configuring.arguments import apply_setting, merged, parse_arguments
from rlightning.configuring.compose import compose, locate
from rlightning.configuring.imports import Imported, beside, load_imports
from rlightning.configuring.sources import Sources, join
from rlightning.configuring.validate import validate
from rlightning.errors import ConfigError, Problem

_PLACEHOLDER = "unnamed"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration that can be run.

    Attributes:
        config: The validated configuration, with the paths of imported files made absolute.
        sources: Where each option that is not a default was written.
        resolved: The composed and resolved tree, with all defaults.
        preset: Name of the preset; for a file its name without the ending.
    """

    config: Config
    sources: Sources
    resolved: dict[str, Any]
    preset: str


def load_config(
    preset_or_path: str, overrides: Sequence[str] = (), config_dir: Path | str | None = None
) -> LoadedConfig:
    """Compose, resolve and validate a configuration; nothing is started.

    Args:
        preset_or_path: Name of a preset, or path of a YAML file.
        overrides: Arguments in Hydra's grammar: ``train.lr=1e-3``, ``cluster=ray``, ``env.num_envs=16``.
        config_dir: Folder of your own presets and groups; ``./conf`` is searched after it, then the package's.

    Raises:
        ConfigError: With all problems at once: dotted path, file and line or argument, and the nearest valid name.
    """
    name, folders = locate(preset_or_path, None if config_dir is None else Path(config_dir))
    arguments = parse_arguments(overrides, folders)
    problems = arguments.problems
    try:
        tree, sources = compose(name, folders, arguments.choices)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from error
    problems += [found for setting in arguments.settings if (found := apply_setting(tree, setting, sources))]
    resolved, unresolved = _resolve(_with_defaults(tree))
    imported, not_imported = load_imports(_import_entries(resolved))
    _make_absolute(resolved, imported)
    config, wrong = validate(resolved)
    problems += [*unresolved, *not_imported, *wrong]
    if problems or config is None:
        raise ConfigError([_located(problem, sources) for problem in problems])
    if config.cluster.any_remote:
        _send_as_code(imported)
    return LoadedConfig(config, sources, resolved, name.rpartition("/")[2])


def _with_defaults(tree: dict[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of the configuration classes, so that interpolations may refer to them."""
    defaults = Config(env=[EnvConfig(name=_PLACEHOLDER)]).model_dump(mode="json")
    env_defaults = {key: value for key, value in defaults.pop("env")[0].items() if key != "name"}
    complete: dict[str, Any] = merged(defaults, tree)
    envs = complete.get("env")
    if isinstance(envs, dict):
        complete["env"] = merged(env_defaults, envs)
    elif isinstance(envs, list):
        complete["env"] = [merged(env_defaults, env) for env in envs]
    return complete


def _resolve(tree: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Fill in interpolations; what cannot be resolved is left out and reported."""
    problems: list[Problem] = []

    def plain(node: Any, path: str) -> Any:
        if isinstance(node, DictConfig):
            found = {key: item(node, key, join(path, key)) for key in node}
            return {key: value for key, value in found.items() if value is not unresolved}
        if isinstance(node, ListConfig):
            values = [item(node, index, join(path, index)) for index in range(len(node))]
            return [value for value in values if value is not unresolved]
        return node

    def item(node: Any, key: Any, path: str) -> Any:
        try:
            return plain(node[key], path)
        except MissingMandatoryValue:
            problems.append(Problem(path, "needs a value"))
        except OmegaConfBaseException as error:
            problems.append(Problem(path, str(error).splitlines()[0]))
        return unresolved

    unresolved = object()
    resolved = plain(OmegaConf.create(tree), "")
    return resolved, problems


def _import_entries(tree: dict[str, Any]) -> list[str]:
    entries = tree.get("imports", [])
    return [entry for entry in entries if isinstance(entry, str)] if isinstance(entries, list) else []


def _make_absolute(tree: dict[str, Any], imported: Sequence[Imported]) -> None:
    """Make paths absolute, so that a run can be resumed and evaluated from any folder."""
    if imported and len(imported) == len(tree["imports"]):
        tree["imports"] = [found.entry for found in imported]
    envs, policy = tree.get("env"), tree.get("policy")
    sections = [(env, "env_kwargs") for env in (envs if isinstance(envs, list) else [envs])]
    sections += [(policy, "model_cfg"), (policy, "algo_cfg")]
    for owner, name in sections:
        options = owner.get(name) if isinstance(owner, dict) else None
        if isinstance(options, dict):
            options |= {key: _absolute(value) for key, value in options.items()}


def _absolute(value: Any) -> Any:
    """Make a text that is the path of a file or folder absolute; one begins with ``./``, ``../`` or ``~/``."""
    if not isinstance(value, str) or not value.startswith(("./", "../", "~/")):
        return value
    path = Path(value).expanduser()
    return str(path.resolve()) if path.exists() else value


def _located(problem: Problem, sources: Sources) -> Problem:
    return problem if problem.where else replace(problem, where=sources.find(problem.path))


def _send_as_code(imported: Sequence[Imported]) -> None:
    # Workers on other machines find neither a file nor what lies beside it by name.
    named = {id(found.module) for found in imported if not found.from_file}
    modules = {id(each): each for found in imported if found.from_file for each in beside(found.module)}
    if modules:
        from rlightning.runtime.ray_backend import pickle_by_value

        for key, module in modules.items():
            if key not in named:
                pickle_by_value(module)
