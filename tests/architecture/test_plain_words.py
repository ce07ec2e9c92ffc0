"""Docstrings, comments and guides use technical English: processes are not persons, and docstrings begin plainly."""

import ast
import io
import re
import tokenize

import pytest

from tests.architecture.source import ROOT, SourceFile, source_files

PERSONS = re.compile(r"\b(who|whoever|whom|somebody|someone|nobody|no one|everybody|everyone|anybody|anyone)\b", re.I)
PEOPLE = re.compile(r"\b(users?|authors?|readers?|people) who\b", re.I)
VAGUE_STARTS = re.compile(r"\s*(give|take|have|tell|say|let)s?\b|\s*has\b", re.I)
FILES = source_files()
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


def docstrings(file):
    """Yield line and text of each docstring, also of those under a field."""
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def comments(file):
    """Yield line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def persons(text):
    return PERSONS.findall(PEOPLE.sub("", text))


def test_docstrings_and_comments_do_not_personify():
    prose = [(file.name, line, text) for file in FILES for line, text in (*docstrings(file), *comments(file))]
    assert [(name, line, persons(text)) for name, line, text in prose if persons(text)] == []


def test_docstrings_say_what_is_returned_or_done():
    prose = [(file.name, line, text) for file in FILES for line, text in docstrings(file)]
    assert [found for found in prose if VAGUE_STARTS.match(found[2])] == []


def test_pages_do_not_personify():
    assert {page.name: found for page in PAGES if (found := persons(page.read_text("utf-8")))} == {}


@pytest.mark.parametrize(
    "prose", ["Whoever asks", "a queue\nthat nobody reads", "whom a route serves", "those who act"]
)
def test_a_process_that_is_called_a_person_is_found(prose):
    assert persons(prose)


@pytest.mark.parametrize("prose", ["Users who write an env", "a tensor whose shape differs", "any one", "the whole"])
def test_persons_and_things_keep_their_words(prose):
    assert not persons(prose)


def test_docstrings_of_fields_and_comments_are_read():
    file = SourceFile("file.py", '"""Module."""\nx = 1  # why\n"""Field."""\n')
    assert [*docstrings(file), *comments(file)] == [(1, "Module."), (3, "Field."), (2, "# why")]
