"""A user's own modules, named under ``imports:``."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rlightning import registry
from rlightning.errors import Problem


@dataclass(frozen=True, slots=True)
class Imported:
    """What one entry of ``imports`` brought.

    Attributes:
        entry: The entry, with the path of a file made absolute, so that it works from any folder.
        module: The module.
        from_file: Whether it was loaded from the path of a file: workers cannot import it by its name.
    """

    entry: str
    module: ModuleType
    from_file: bool


def load_imports(entries: Sequence[str]) -> tuple[list[Imported], list[Problem]]:
    """Load modules so that they register what they bring; each once in the life of a process.

    Args:
        entries: Dotted names, found from the current folder too, or paths of ``.py`` files.

    Returns:
        What was loaded, and a problem for each entry that was not.
    """
    loaded, problems = [], []
    for index, entry in enumerate(entries):
        try:
            loaded.append(_load(entry))
        except Exception as error:
            # User code may raise anything; it is one problem among the others of the configuration.
            problems.append(Problem(f"imports.{index}", f"cannot import {entry!r}: {_describe(error)}"))
    return loaded, problems


def _load(entry: str) -> Imported:
    if not entry.endswith(".py"):
        if str(Path.cwd()) not in sys.path and "" not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        module = importlib.import_module(entry)
        registry.listed.add(module.__name__)
        # The name means something in the current folder alone, and a run is resumed from any.
        here = Path.cwd() / f"{entry}.py"
        is_here = here.is_file() and here == Path(getattr(module, "__file__", None) or "").resolve()
        return Imported(str(here) if is_here else entry, module, from_file=False)
    path = Path(entry).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # What lies beside the file is found from there; last, so that it hides no other module.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = _module_of(path) or _load_file(path)
    registry.listed.add(module.__name__)
    return Imported(str(path), module, from_file=module.__name__ != "__main__")


def beside(module: ModuleType) -> list[ModuleType]:
    """List the modules and packages that are loaded from the folder of a module's file, itself among them."""
    folder = Path(str(module.__file__)).parent

    def place(candidate: ModuleType) -> Path | None:
        file = getattr(candidate, "__file__", None)
        if not isinstance(file, str) or "." in candidate.__name__:
            return None
        return Path(file).parent.parent if hasattr(candidate, "__path__") else Path(file).parent

    if "site-packages" in folder.parts or (folder / "rlightning" / "__init__.py").is_file():
        return [module]  # installed packages, and this one, are there on every machine
    found = [each for name, each in list(sys.modules.items()) if name != "__main__" and place(each) == folder]
    return list(dict.fromkeys([module, *found]))


def _module_of(path: Path) -> ModuleType | None:
    """Find the module that was loaded from a file, the program itself among them."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.basename(file) == path.name and Path(file).resolve() == path:  # noqa: PTH119
            return module
    return None


def _load_file(path: Path) -> ModuleType:
    stem = path.stem.replace(".", "_")
    names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
    name = next(name for name in names if _is_free(name, path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_free(name: str, path: Path) -> bool:
    """Return whether a module name means nothing else than the file at ``path``."""
    found = None if name in sys.modules else importlib.util.find_spec(name)
    return name not in sys.modules and (found is None or found.origin == str(path))


def _describe(error: Exception) -> str:
    """Describe what went wrong, and where in the user's code if it went wrong there."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    inside = last is not None and not last.filename.startswith("<frozen") and Path(last.filename) != Path(__file__)
    where = f" ({last.filename}:{last.lineno})" if last is not None and inside else ""
    return f"{type(error).__name__}: {error}{where}"
