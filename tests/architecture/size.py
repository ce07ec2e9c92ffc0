"""Count the package: ``make size`` prints what test_size.py holds to its limits."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from tests.architecture.source import ROOT, SourceFile, source_files

LEAVES = ("algorithms", "models", "simulators")


def room(file: SourceFile) -> str:
    """Return the room that a file belongs to: its folder, or itself where it lies in no folder."""
    return file.name.partition("/")[0].removesuffix(".py")


def lines(file: SourceFile) -> int:
    """Count all lines: code, docstrings, comments and empty ones."""
    return len(file.text.splitlines())


def lines_by_room(files: Iterable[SourceFile]) -> dict[str, int]:
    """Count the lines of each room."""
    found: dict[str, int] = {}
    for file in files:
        found[room(file)] = found.get(room(file), 0) + lines(file)
    return found


def methods(file: SourceFile, name: str) -> list[str]:
    """List what can be called on a class of a file: methods, properties, and aliases; a setter is none of its own.

    Raises:
        LookupError: If the file has no such class.
    """
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            defined = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            aliases = [
                each for each in node.body if isinstance(each, ast.Assign) and isinstance(each.value, ast.Attribute)
            ]
            return list(dict.fromkeys([*defined, *(ast.unparse(alias.targets[0]) for alias in aliases)]))
    raise LookupError(f"{file.name} has no class {name}")


def import_cycle(files: Iterable[SourceFile]) -> list[str]:
    """Return the modules of one cycle of imports; none if there is no cycle.

    What is imported for a type checker alone is no import.
    """
    modules = {_module(file): file for file in files}
    graph = {
        name: {found if found in modules else found.rpartition(".")[0] for found in _imported(file)} & modules.keys()
        for name, file in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _module(file: SourceFile) -> str:
    return f"rlightning/{file.name}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported(file: SourceFile) -> set[str]:
    """Return the dotted names that are imported when the file is: modules, or names of modules."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(file.tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)
    return found


def lines_of_tests() -> int:
    """Count the lines of the tests."""
    return sum(len(path.read_text("utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py"))


def main() -> None:
    """Print the table."""
    files = source_files()
    by_name = {file.name: file for file in files}
    for name, count in sorted(lines_by_room(files).items(), key=lambda item: -item[1]):
        print(f"{count:7,}  {name}")
    print(f"{sum(map(lines, files)):7,}  the package, in {len(files)} files")
    print(f"{lines_of_tests():7,}  the tests")
    for name, path in (("BasePolicy", "policy/base_policy.py"), ("PolicyGroup", "policy/policy_group.py")):
        print(f"{lines(by_name[path]):7,}  {path}; {name} has {len(methods(by_name[path], name))} methods")
    longest = max(files, key=lines)
    print(f"{lines(longest):7,}  {longest.name}, the longest file")
    print("cycle of imports:", " -> ".join(import_cycle(files)) or "none")


if __name__ == "__main__":
    main()
