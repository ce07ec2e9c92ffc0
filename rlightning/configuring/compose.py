"""Hydra's part of loading: which files make up a configuration, and the tree that they compose to."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra import compose as hydra_compose
from hydra import initialize, version
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlightning.configuring.sources import Sources, display, parse_yaml
from rlightning.errors import ConfigError, Problem, nearest_name

PACKAGE_CONF = Path(__file__).parents[1] / "conf"
"""The presets and groups that ship with the package."""

_HYDRA_VERSION_BASE = "1.3"
_LOCK = threading.Lock()
"""Hydra and Python's filters of warnings belong to the process: threads compose one by one."""


class _Folders(SearchPathPlugin):
    """The folders in which Hydra looks for all files, the primary one among them,."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in reversed(self.folders):
            search_path.prepend("rlightning", f"file://{folder}")


Plugins.instance().register(_Folders)


@dataclass(frozen=True, slots=True)
class Preset:
    """A configuration that has a name.

    Attributes:
        name: What the command line calls it.
        description: Its first comment line.
    """

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """The choice of a file of a group, such as ``cluster=ray``.

    Attributes:
        key: Name of the group, with ``@package`` where one is given.
        value: Name of a file in the group, or several; None removes the group.
        argument: The argument of the command line.
    """

    key: str
    value: str | list[str] | None
    argument: str

    @property
    def group(self) -> str:
        """Name of the group alone."""
        return self.key.partition("@")[0]


def search_folders(config_dir: Path | None = None) -> list[Path]:
    """List the folders of presets and groups, the first one wins: ``config_dir``, ``./conf``, the package's.

    Raises:
        ConfigError: If ``config_dir`` is not a folder.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise ConfigError(Problem("--config-dir", f"there is no folder {config_dir}"))
    own = [config_dir] if config_dir is not None else []
    candidates = [folder.resolve() for folder in (*own, Path("conf"), PACKAGE_CONF) if folder.is_dir()]
    return list(dict.fromkeys(candidates))


def presets(config_dir: Path | None = None) -> list[Preset]:
    """List what ``train`` can be given by name, a user's own before the package's."""
    found: dict[str, Preset] = {}
    for folder in search_folders(config_dir):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, Preset(path.stem, _description(path)))
    return list(found.values())


def locate(preset_or_path: str, config_dir: Path | None) -> tuple[str, list[Path]]:
    """Find a preset by its name or by the path of its file.

    Returns:
        Its name, and the folders to compose it from.

    Raises:
        ConfigError: If there is none; suggests the nearest name.
    """
    folders = search_folders(config_dir)
    path = Path(preset_or_path).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        path = path.resolve()
        if path.suffix == ".yml":
            raise ConfigError(Problem("preset", f"{display(path)} must end in .yaml", suggestion=f"{path.stem}.yaml"))
        return path.stem, list(dict.fromkeys([path.parent, *folders]))
    name = preset_or_path.removesuffix(".yaml")
    if _find(name, folders) is None:
        known = [preset.name for preset in presets(config_dir)]
        where = "searched " + ", ".join(display(folder) for folder in folders)
        message = f"there is no preset and no file {preset_or_path!r}; 'rlightning presets' lists them"
        raise ConfigError(Problem("preset", message, where, nearest_name(name, known)))
    return name, folders


def is_group(key: str, folders: Sequence[Path]) -> bool:
    """Return whether a key of the command line names a group."""
    return bool(key) and any((folder / key).is_dir() for folder in folders)


def group_options(group: str, folders: Sequence[Path]) -> list[str]:
    """List the files that a group offers."""
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def compose(name: str, folders: Sequence[Path], choices: Sequence[GroupChoice]) -> tuple[dict[str, Any], Sources]:
    """Compose a configuration of files.

    Args:
        name: Name of the primary file, without ``.yaml``.
        folders: Where to look for files; the first one wins.
        choices: Which files of groups to take instead of, or besides, those of the primary file.

    Returns:
        The tree, with interpolations as they were written, and where each option was written.

    Raises:
        ConfigError: If a file is missing or is not a YAML mapping.
    """
    primary = _find(name, folders)
    assert primary is not None
    parse_yaml(primary)
    try:
        with _hydra(folders):
            known = set(_defaults(name, []).overrides.known_choices) if choices else set()
            overrides = [_as_override(choice, known) for choice in choices]
            files = [(entry.config_path, entry.package or "") for entry in _defaults(name, overrides).defaults]
            tree = OmegaConf.to_container(hydra_compose(name, overrides), resolve=False)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(_explain(error, primary, folders)) from error
    assert isinstance(tree, dict)
    sources = Sources()
    for config_path, package in files:
        file = _find(config_path, folders) if config_path else None
        if file is not None:
            sources.record_file(file, package)
    return {str(key): value for key, value in tree.items()}, sources


@contextmanager
def _hydra(folders: Sequence[Path]) -> Iterator[None]:
    """Initialise Hydra with some folders; a program that uses Hydra itself finds it as it was."""
    with _LOCK, warnings.catch_warnings():
        # A file without _self_ wins over its defaults, whereas earlier versions of Hydra did the opposite, so it warns.
        warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`")
        state, base = GlobalHydra.instance(), version.VersionBase.instance()
        outer, state.hydra, before = state.hydra, None, base.version_base
        _Folders.folders = folders
        try:
            with initialize(None, job_name="rlightning", version_base=_HYDRA_VERSION_BASE):
                yield
        finally:
            _Folders.folders = ()
            GlobalHydra.instance().hydra = outer
            version.VersionBase.instance().version_base = before


def _defaults(name: str, overrides: list[str]) -> Any:
    return GlobalHydra.instance().config_loader().compute_defaults_list(name, overrides, RunMode.RUN)


def _as_override(choice: GroupChoice, known: set[str]) -> str:
    if choice.value is None:
        return f"~{choice.key}"
    value = choice.value if isinstance(choice.value, str) else f"[{','.join(choice.value)}]"
    return f"{choice.key}={value}" if choice.key in known else f"+{choice.key}={value}"


def _find(name: str, folders: Sequence[Path]) -> Path | None:
    candidates = (folder / f"{name}.yaml" for folder in folders)
    return next((path for path in candidates if path.is_file()), None)


def _description(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    head = takewhile(lambda line: not line or line.startswith("#"), lines)
    return next((line.lstrip("# ") for line in head if line and not line.startswith("# @package")), "")


def _explain(error: Exception, primary: Path, folders: Sequence[Path]) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        where = f"{display(Path(mark.name))}:{mark.line + 1}"
        return Problem("config", f"not valid YAML: {getattr(error, 'problem', error)}", where)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_file(str(error.missing_cfg_file), str(error), primary, folders)
    text = " ".join(str(error.__cause__ or error).split())
    return Problem("config", f"cannot be composed: {text}", display(primary))


def _missing_file(missing: str, message: str, primary: Path, folders: Sequence[Path]) -> Problem:
    """Find the entry of a defaults list that names a file that does not exist."""
    parent = re.match(r"In '([^']+)'", message)
    file = (_find(parent.group(1), folders) if parent else None) or primary
    group, _, option = missing.rpartition("/")
    known = group_options(group, folders)
    line = next(
        (number for number, text in enumerate(file.read_text().splitlines(), 1) if re.search(rf"\b{option}\b", text)), 0
    )
    where = f"{display(file)}:{line}" if line else display(file)
    known_text = f"; known: {', '.join(known)}" if known else ""
    return Problem(
        group or "defaults", f"there is no file {missing}.yaml{known_text}", where, nearest_name(option, known)
    )
