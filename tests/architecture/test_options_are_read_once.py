"""An option is read once, at assembly, and turned into an object: no other room compares the name of a choice."""

import ast
import typing

import pytest
from pydantic import BaseModel

from rlightning.config import Config
from tests.architecture.source import SourceFile, source_files

READERS = ("assembly/", "configuring/", "config.py")
"""Where names of choices are turned into objects."""
LEAVES = ("algorithms/", "models/", "simulators/")
"""What users choose by name; each reads its own options."""
ORDINARY = {"None", "all", "auto", "default", "error", "eval", "info", "log", "memory", "none", "simple", "train"}
"""Choices that are ordinary words as well, which count only beside the name of their option."""


def literals(annotation):
    """Yield the names that an option may have."""
    if typing.get_origin(annotation) is typing.Literal:
        yield from (value for value in typing.get_args(annotation) if isinstance(value, str))
    else:
        for argument in typing.get_args(annotation):
            yield from literals(argument)


def sections(section):
    yield section
    for field in section.model_fields.values():
        waiting = [field.annotation]
        while waiting:
            annotation = waiting.pop()
            if isinstance(annotation, type) and issubclass(annotation, BaseModel):
                yield from sections(annotation)
            waiting += typing.get_args(annotation)


CHOICES = {
    (name, choice)
    for section in sections(Config)
    for name, field in section.model_fields.items()
    if typing.get_origin(field.annotation) is not dict
    for choice in literals(field.annotation)
}
DISTINCT = {choice for _, choice in CHOICES} - ORDINARY


def texts(node):
    """Return the strings that a constant, or a tuple, list or set of constants, has."""
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}


def comparisons(file):
    """Yield each comparison with the name of a choice."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            found = set().union(*map(texts, operands))
            names = {getattr(each, "attr", getattr(each, "id", "")) for each in operands}
            if found & DISTINCT or {(name, choice) for name in names for choice in found} & CHOICES:
                yield ast.unparse(node)
        elif isinstance(node, ast.MatchValue) and texts(node.value) & DISTINCT:
            yield f"case {ast.unparse(node)}"


def test_no_choice_is_compared_by_name_after_assembly():
    found = {
        (file.name, comparison)
        for file in source_files()
        if not file.name.startswith((*READERS, *LEAVES))
        for comparison in comparisons(file)
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        "if strategy == 'Double': pass",
        "x = kind in ('Shared', 'Sharded')",
        "config.rollout_mode != 'async'",
        "config.cluster.placement.mode == 'auto'",
        "match way:\n    case 'Shared': pass",
    ],
)
def test_every_comparison_with_a_choice_is_seen(line):
    assert list(comparisons(SourceFile("file.py", line)))


@pytest.mark.parametrize("line", ["role == 'train'", "x = {'Double': 3}[name]", "encoder == 'auto'", "level == 3"])
def test_other_comparisons_are_none(line):
    assert not list(comparisons(SourceFile("file.py", line)))
