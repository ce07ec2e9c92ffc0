"""All that is wrong with a configuration, at once: names, types, limits, the policy's own options, what cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rlightning import registry
from rlightning.config import CallbackConfig, Config, EnvConfig
from rlightning.configuring.sources import join
from rlightning.configuring.suggest import nearest_option, options, schema_path_of
from rlightning.configuring.supported import CONTRADICTIONS, NOT_YET, PLANNED, refused
from rlightning.errors import Problem, nearest_name

_SECTIONS = {"policy.model_cfg": "ModelOptions", "policy.algo_cfg": "AlgoOptions"}
"""Free sections, and the attribute of a policy class that describes them."""

_MESSAGES = {
    "bool_type": "must be true or false",
    "dict_type": "must be a section of options",
    "finite_number": "must be finite",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_type": "must be a section of options",
    "none_required": "must be null",
    "string_type": "must be text",
    "tuple_type": "must be a list",
}
_LONGEST_VALUE = 60
_PLACEHOLDER = "unnamed"


def validate(tree: dict[str, Any]) -> tuple[Config | None, list[Problem]]:
    """Validate a composed configuration; the user's modules are loaded already.

    Returns:
        The configuration (None if there are problems), and the problems.
    """
    extra = [option for _, _, model in _policy_sections(tree) for option in model]
    try:
        config: Config | None = Config.model_validate(tree)
        problems: list[Problem] = []
    except ValidationError as error:
        problems = list(explain(error.errors(), tree, extra))
        config = None
    usable = config or _without_the_wrong_parts(tree)
    if usable is not None:
        problems += _names(usable, tree)
        problems += refused(NOT_YET, usable)
    if config is not None:
        problems += refused(CONTRADICTIONS, config)
    problems += _policy_options(tree, extra)
    return (None if problems else config), problems


def _policy_sections(tree: Mapping[str, Any]) -> list[tuple[str, type[BaseModel], list[str]]]:
    """List the policy's own sections: dotted path, class, dotted paths of the options."""
    policy = tree.get("policy")
    name = policy.get("type", "ppo") if isinstance(policy, Mapping) else "ppo"
    if not isinstance(name, str) or name not in registry.names("policy"):
        return []
    cls = registry.lookup("policy", name)
    found = [(path, getattr(cls, attribute, None)) for path, attribute in _SECTIONS.items()]
    return [(path, model, list(options(model, path))) for path, model in found if model is not None]


def _policy_options(tree: Mapping[str, Any], extra: Sequence[str]) -> Iterator[Problem]:
    policy = tree.get("policy")
    policy = policy if isinstance(policy, Mapping) else {}
    for path, model, _ in _policy_sections(tree):
        given = policy.get(path.rpartition(".")[2], {})
        if not isinstance(given, Mapping):
            continue
        try:
            model.model_validate(given)
        except ValidationError as error:
            yield from explain(error.errors(), given, extra, path)


def explain(
    errors: Sequence[ErrorDetails],
    tree: Mapping[str, Any],
    extra: Sequence[str] = (),
    section: str = "",
    model: type[BaseModel] = Config,
) -> Iterator[Problem]:
    """Describe what is wrong with each option of a tree.

    Args:
        errors: What pydantic found.
        tree: The options.
        extra: Options that the model does not know.
        section: Dotted path of the tree.
        model: What the options belong to.
    """
    seen: set[str] = set()
    for error in errors:
        path = join(section, *_location(error, tree))
        if path not in seen:
            seen.add(path)
            yield _problem(path, error, extra, model)


def _location(error: ErrorDetails, tree: Any) -> list[str | int]:
    """Return where in the tree, as it was written, an error lies."""
    parts: list[str | int] = []
    node = tree
    for part in error["loc"]:
        if isinstance(part, int) and parts == ["env"] and isinstance(node, Mapping):
            continue  # One env need not be written as a list.
        parts.append(part)
        inside = (isinstance(node, Mapping) and part in node) or (
            isinstance(node, list) and isinstance(part, int) and part < len(node)
        )
        if not inside:
            # Either it is missing, or it names an alternative of a union, which is no part of the path.
            return parts if error["type"] == "missing" else parts[:-1]
        node = node[part]
    return parts


def _problem(path: str, error: ErrorDetails, extra: Sequence[str], model: type[BaseModel]) -> Problem:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return _unknown(path, extra, model)
    if kind == "missing":
        return Problem(path, "needs a value")
    if isinstance(value, str) and (path, value) in PLANNED:
        return Problem(path, PLANNED[path, value])
    context = error.get("ctx", {})
    message = _MESSAGES[kind].format(**context) if kind in _MESSAGES else error["msg"].removeprefix("Value error, ")
    shown = repr(value)
    shown = shown if len(shown) <= _LONGEST_VALUE else f"{shown[:_LONGEST_VALUE]}..."
    hint = ""
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        hint = f"; write {int(value)}"
    if kind == "string_type" and isinstance(value, int | float):
        hint = "; put it in quotes"
    expected = re.findall(r"'([^']*)'", context.get("expected", ""))
    return Problem(path, f"{message}, got {shown}{hint}", suggestion=nearest_name(str(value), expected))


def _unknown(path: str, extra: Sequence[str], model: type[BaseModel]) -> Problem:
    schema_path = schema_path_of(path, model)
    section, _, _ = schema_path.rpartition(".")
    nearest = nearest_option(schema_path, extra, model)
    if nearest:
        nearest_section, _, name = nearest.rpartition(".")
        here = path.rpartition(".")[0]
        return Problem(path, "no such option", suggestion=join(here, name) if nearest_section == section else nearest)
    siblings = [option for option in (*options(model), *extra) if option.rpartition(".")[0] == section]
    known = ", ".join(option.rpartition(".")[2] for option in siblings)
    return Problem(path, f"no such option; {section or 'the configuration'} has {known}")


def _without_the_wrong_parts(tree: dict[str, Any]) -> Config | None:
    """Validate what is left without the wrong parts, so that the checks of the rest find more in one go."""
    tree = deepcopy(tree)
    try:
        Config.model_validate(tree)
    except ValidationError as error:
        for item in error.errors():
            _repair(tree, _location(item, tree), missing=item["type"] == "missing")
    try:
        return Config.model_validate(tree)
    except ValidationError:
        return None


def _repair(tree: Any, location: Sequence[str | int], *, missing: bool) -> None:
    node = tree
    for part in location[:-1]:
        node = node[part]
    if not location or not isinstance(node, dict):
        return
    if missing:
        node[location[-1]] = {"name": _PLACEHOLDER} if location[-1] == "env" else _PLACEHOLDER
    else:
        node.pop(location[-1], None)


def _names(config: Config, tree: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _name("policy", config.policy.type, "policy.type")
    yield from _name("buffer", config.buffer.type, "buffer.type")
    for index, callback in enumerate(config.callbacks):
        yield from _callback(callback, f"callbacks.{index}")
    listed = isinstance(tree.get("env"), list)
    for index, env in enumerate(config.env):
        section = f"env.{index}" if listed else "env"
        wrong = [*_name("simulator", env.backend, f"{section}.backend")]
        yield from wrong
        yield from _name("tokenizer", env.text.tokenizer, f"{section}.text.tokenizer")
        if env.wrappers and env.backend != "gymnasium":
            message = f"are those of Gymnasium's envs, and the backend is {env.backend}; remove them"
            yield Problem(f"{section}.wrappers", message)
        if not wrong and env.name != _PLACEHOLDER:
            yield from _env(env, section)


def _callback(config: CallbackConfig, section: str) -> Iterator[Problem]:
    """Build a callback, whose constructor checks its arguments and does nothing else."""
    wrong = list(_name("callback", config.name, f"{section}.name"))
    yield from wrong
    if wrong or config.name == _PLACEHOLDER:
        return
    cls = registry.lookup("callback", config.name)
    known = registry.argument_names(cls) or list(config.arguments)
    unknown = [name for name in config.arguments if name not in known]
    for name in unknown:
        message = f"{config.name} has no such argument; it has {', '.join(known)}"
        yield Problem(f"{section}.arguments.{name}", message, suggestion=nearest_name(name, known))
    if not unknown:
        try:
            cls(**config.arguments)
        except (TypeError, ValueError) as error:
            yield Problem(f"{section}.arguments", f"{config.name}: {error}")


def _env(env: EnvConfig, section: str) -> Iterator[Problem]:
    """Ask the simulator, where it can say more about its part than whether names and types are right."""
    check = getattr(registry.lookup("simulator", env.backend), "check", None)
    for problem in check(env) if check is not None else ():
        path, suggestion = (re.sub(r"^env\.", f"{section}.", text) for text in (problem.path, problem.suggestion))
        yield replace(problem, path=path, suggestion=suggestion)


def _name(kind: registry.Kind, name: str, path: str) -> Iterator[Problem]:
    known = registry.names(kind)
    option = re.sub(r"\.\d+\.", ".", path)
    if name not in known and (option, name) in PLANNED:
        yield Problem(path, PLANNED[option, name])
    elif name not in known:
        message = f"no {kind} is called {name!r}; known: {', '.join(known)}; your own need their module under 'imports'"
        yield Problem(path, message, suggestion=nearest_name(name, known))
