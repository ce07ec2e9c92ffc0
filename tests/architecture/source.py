"""The source files of the package, as the tests of this folder read them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rlightning"


@dataclass(frozen=True)
class SourceFile:
    """One file of the package; ``name`` is its path below the package."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.name)

    def imported_modules(self) -> Iterator[str]:
        """Every module that is imported anywhere in the file, also inside functions and by ``import_module``."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module or ""
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Call) and _called_name(node) in {"import_module", "__import__"}:
                yield from (str(argument.value) for argument in node.args[:1] if isinstance(argument, ast.Constant))

    def reads_environment(self) -> bool:
        """Whether the file uses ``os.environ`` or one of its relatives, under whatever name it was imported."""
        relatives = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
        used = {node.attr for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)}
        imported = {name.partition("os.")[2] for name in self.imported_modules() if name.startswith("os.")}
        return bool(relatives & (used | imported))


def _called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def source_files(package: Path = PACKAGE) -> list[SourceFile]:
    return [
        SourceFile(path.relative_to(package).as_posix(), path.read_text("utf-8"))
        for path in sorted(package.rglob("*.py"))
    ]
