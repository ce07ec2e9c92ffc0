"""Where each option of a configuration was written: file and line, or the argument of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rlightning.errors import ConfigError, Problem

_MERGE_KEY = "<<"


class Sources(dict[str, str]):
    """Dotted path of an option -> where its value comes from; what is recorded later wins."""

    def record_file(self, path: Path, package: str) -> None:
        """Record every option of a YAML file.

        Args:
            path: The file.
            package: Dotted path of the section that the file fills; empty for the whole configuration.
        """
        node = parse_yaml(path)
        if node is not None:
            for option, line in _lines(node, package):
                self[option] = f"{display(path)}:{line}"

    def record_argument(self, path: str, value: Any, argument: str) -> None:
        """Record that an argument of the command line set ``path``, and all that lies under it, to ``value``."""
        for known in [known for known in self if is_under(known, path)]:
            if not isinstance(value, Mapping):
                del self[known]
        for option in _paths(value, path):
            self[option] = f"command line: {argument}"
        section = path.rpartition(".")[0]
        while section and section not in self:  # sections that are written nowhere else
            self[section] = f"command line: {argument}"
            section = section.rpartition(".")[0]

    def find(self, path: str) -> str:
        """Return where ``path`` was written; where it was not, the nearest section around it; else nothing."""
        while path:
            if path in self:
                return self[path]
            path = path.rpartition(".")[0]
        return ""


def is_under(path: str, section: str) -> bool:
    """Return whether a dotted path is a section or lies in it.

    >>> is_under("train.lr", "train"), is_under("trainer", "train")
    (True, False)
    """
    return path == section or path.startswith(f"{section}.")


def join(*parts: object) -> str:
    """Make a dotted path of its parts, without the empty ones.

    >>> join("", "env", 0, "name")
    'env.0.name'
    """
    return ".".join(str(part) for part in parts if part != "")


def display(path: Path) -> str:
    """Name a file as a person would: relative to the current folder where it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def parse_yaml(path: Path) -> yaml.Node | None:
    """Parse a YAML file into nodes that know their lines; None where it is empty.

    Raises:
        ConfigError: If it is not YAML, or not a mapping; names the line.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = display(path) if mark is None else f"{display(path)}:{mark.line + 1}"
        raise ConfigError(Problem("config", f"not valid YAML: {getattr(error, 'problem', error)}", where)) from error
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise ConfigError(Problem("config", "not a mapping of options", f"{display(path)}:{node.start_mark.line + 1}"))
    return node


def _lines(node: yaml.Node, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        # What a merge key brings in is weaker than what is written beside it.
        for key, value in sorted(node.value, key=lambda pair: pair[0].value != _MERGE_KEY):
            if key.value == _MERGE_KEY:
                yield from _lines(value, path)
            else:
                option = join(path, key.value)
                yield option, key.start_mark.line + 1
                yield from _lines(value, option)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            option = join(path, index)
            yield option, item.start_mark.line + 1
            yield from _lines(item, option)


def _paths(value: Any, path: str) -> Iterator[str]:
    yield path
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths(item, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, join(path, index))
