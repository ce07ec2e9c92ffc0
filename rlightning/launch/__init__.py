"""The only room that knows everybody: reads the configuration, builds the parts, and runs them.

The names below are loaded on first use, so that ``rlightning --help`` does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlightning.launch.assemble import assemble as assemble
    from rlightning.launch.assemble import build_data_buffer as build_data_buffer
    from rlightning.launch.assemble import build_engine as build_engine
    from rlightning.launch.assemble import build_env_group as build_env_group
    from rlightning.launch.assemble import build_eval_env_group as build_eval_env_group
    from rlightning.launch.assemble import build_policy_group as build_policy_group
    from rlightning.launch.load import LoadedConfig as LoadedConfig
    from rlightning.launch.load import load_config as load_config
    from rlightning.launch.run import launch as launch
    from rlightning.launch.run import open_run as open_run

_PUBLIC = {
    "LoadedConfig": "load",
    "assemble": "assemble",
    "build_data_buffer": "assemble",
    "build_engine": "assemble",
    "build_env_group": "assemble",
    "build_eval_env_group": "assemble",
    "build_policy_group": "assemble",
    "launch": "run",
    "load_config": "load",
    "open_run": "run",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rlightning.launch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlightning.launch.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


class _Room(ModuleType):
    """A room that is also the function of its name.

    Python binds an imported room to its name in the package, so that ``from rlightning import launch`` gives the room.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds the module of a function's name likewise when it is imported.
        super().__setattr__(name, getattr(value, name) if name in _PUBLIC and isinstance(value, ModuleType) else value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__getattr__("launch")(*args, **kwargs)


sys.modules[__name__].__class__ = _Room
