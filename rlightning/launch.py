"""What a user's script calls to read a configuration, build the parts of a run, and run them.

The names below are loaded on first use, so that ``rlightning --help`` does not import torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlightning.assembly.assemble import assemble as assemble
    from rlightning.assembly.assemble import build_data_buffer as build_data_buffer
    from rlightning.assembly.assemble import build_engine as build_engine
    from rlightning.assembly.assemble import build_env_group as build_env_group
    from rlightning.assembly.assemble import build_eval_env_group as build_eval_env_group
    from rlightning.assembly.assemble import build_policy_group as build_policy_group
    from rlightning.assembly.recording import open_run as open_run
    from rlightning.assembly.run import Run as Run
    from rlightning.commands.run import launch as launch
    from rlightning.configuring.load import LoadedConfig as LoadedConfig
    from rlightning.configuring.load import load_config as load_config

_PUBLIC = {
    "LoadedConfig": "configuring.load",
    "Run": "assembly.run",
    "assemble": "assembly.assemble",
    "build_data_buffer": "assembly.assemble",
    "build_engine": "assembly.assemble",
    "build_env_group": "assembly.assemble",
    "build_eval_env_group": "assembly.assemble",
    "build_policy_group": "assembly.assemble",
    "launch": "commands.run",
    "load_config": "configuring.load",
    "open_run": "assembly.recording",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rlightning.launch' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlightning.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


class _Callable(ModuleType):
    """A module that is also the function of its name.

    Python binds an imported module to its name in the package, so that ``from rlightning import launch`` gives it.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return __getattr__("launch")(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
