"""The configuration reference, made from the classes of ``rlightning.config`` and of the built-in algorithms.

A page says ``{include} ../_generated/configuration.md``; this extension writes that file before the pages are read.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from sphinx.application import Sphinx

from rlightning import registry
from rlightning.config import Config

_PLAIN_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "`null`"}
_LIMITS: dict[type[Any], tuple[str, str]] = {
    annotated_types.Ge: ("≥", "ge"),
    annotated_types.Gt: (">", "gt"),
    annotated_types.Le: ("≤", "le"),
    annotated_types.Lt: ("<", "lt"),
}

_KINDS: dict[Any, tuple[str, str]] = {list: ("list of sections", "[]"), dict: ("sections by name", ".<name>")}
"""What holds sections -> what it is called, and what stands for one of them in a path."""


def render() -> str:
    """Write the whole reference as Markdown."""
    parts = ["\n".join(_section(section, path)) for path, section in _sections(Config, "")]
    for algorithm in registry.names("policy"):
        policy_class = registry.lookup("policy", algorithm)
        for option, owner in (("policy.algo_cfg", "AlgoOptions"), ("policy.model_cfg", "ModelOptions")):
            section = getattr(policy_class, owner)
            if section is not None:
                parts += [
                    "\n".join(_section(found, path, f" of {algorithm}")) for path, found in _sections(section, option)
                ]
    return "\n\n".join(parts) + "\n"


def meanings(section: type[BaseModel]) -> dict[str, str]:
    """Collect the docstrings that stand under the fields of a section, by the name of the field."""
    found: dict[str, str] = {}
    for cls in reversed(section.__mro__):
        if not issubclass(cls, BaseModel) or cls.__module__.startswith("pydantic"):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for field, after in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
                text = ast.literal_eval(after.value)
                found[field.target.id] = " ".join(inspect.cleandoc(text).split())
    return found


def subsection(annotation: Any) -> type[BaseModel] | None:
    """Return the section in an annotation, alone or in a list."""
    candidates = [annotation, *get_args(annotation)]
    return next((one for one in candidates if inspect.isclass(one) and issubclass(one, BaseModel)), None)


def _sections(section: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, section
    for name, field in section.model_fields.items():
        inner = subsection(field.annotation)
        if inner is not None:
            inside = _KINDS.get(get_origin(field.annotation), ("section", ""))[1]
            yield from _sections(inner, f"{path}.{name}".lstrip(".") + inside)


def _section(section: type[BaseModel], path: str, suffix: str = "") -> Iterator[str]:
    title = f"`{path}`{suffix}" if path else "The top level"
    yield f"## {title}\n\n{_text(inspect.getdoc(section) or '')}\n"
    documented = meanings(section)
    for name, field in section.model_fields.items():
        inner = subsection(field.annotation)
        meaning = documented.get(name) or (inspect.getdoc(inner) if inner else "") or ""
        if inner:
            kind, _ = _KINDS.get(get_origin(field.annotation), ("section", ""))
        else:
            kind = f"{_kind(field.annotation, field.metadata)}; {_default(field)}"
        yield f"`{name}`\n: {_text(meaning)}\n  <br>*{kind}*\n"


def _text(docstring: str) -> str:
    """Turn the double backquotes of docstrings into Markdown's single ones."""
    return " ".join(docstring.replace("``", "`").split())


def _kind(annotation: Any, metadata: list[Any]) -> str:
    alternatives = [argument for argument in get_args(annotation) if argument is not type(None)]
    if get_origin(annotation) in (Union, types.UnionType) and len(alternatives) == 1:
        return f"{_kind(alternatives[0], metadata)}, or {_name(type(None))}"
    limits = " and ".join(_limits(metadata))
    return f"{_name(annotation)} {limits}".strip()


def _limits(metadata: list[Any]) -> Iterator[str]:
    for one in metadata:
        if type(one) in _LIMITS:
            sign, attribute = _LIMITS[type(one)]
            yield f"{sign} {getattr(one, attribute)}"


def _name(annotation: Any) -> str:
    """Describe a type in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_name(argument) for argument in arguments)
    if origin is list:
        return f"list of {_name(arguments[0])}"
    if origin is tuple:
        return "list of " + (
            _name(arguments[0]) if arguments[-1] is Ellipsis else f"{len(arguments)} times a {_name(arguments[0])}"
        )
    if origin is dict or annotation is dict:
        return "free-form"
    if hasattr(annotation, "__metadata__"):
        return _kind(arguments[0], list(annotation.__metadata__))
    return _PLAIN_NAMES[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    assert value is not PydanticUndefined
    return f"default {_value(value)}"


def _value(value: Any) -> str:
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, list | tuple):
        return f"`[{', '.join(str(item) for item in value)}]`"
    return f"`{value:.6g}`" if isinstance(value, float) else f"`{value}`"


def _write(app: Sphinx) -> None:
    write_if_changed(Path(app.srcdir) / "_generated" / "configuration.md", render())


def write_if_changed(path: Path, text: str) -> None:
    """Write a page, but leave an equal one alone, so that it is not built again."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the generation of this page before Sphinx reads any page."""
    app.connect("builder-inited", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
