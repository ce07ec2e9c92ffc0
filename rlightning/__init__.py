"""RLightning: reinforcement learning for embodied agents, from one process to many nodes.

Importing this package is cheap: the public names below are loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

_PUBLIC = {
    "BaseEnv": "rlightning.env.base_env",
    "BasePolicy": "rlightning.policy.base_policy",
    "Callback": "rlightning.engine.callbacks",
    "Config": "rlightning.config",
    "EnvMeta": "rlightning.types",
    "EnvRet": "rlightning.types",
    "PolicyGroup": "rlightning.policy.policy_group",
    "PolicyResponse": "rlightning.types",
    "PolicyRole": "rlightning.policy.base_policy",
    "assemble": "rlightning.launch",
    "build_data_buffer": "rlightning.launch",
    "build_engine": "rlightning.launch",
    "build_env_group": "rlightning.launch",
    "build_policy_group": "rlightning.launch",
    "launch": "rlightning.launch",
    "load_policy": "rlightning.deployment.trained_policy",
    "register": "rlightning.registry",
}

__all__ = [*sorted(_PUBLIC), "__version__"]

if TYPE_CHECKING:
    from rlightning.config import Config as Config
    from rlightning.deployment.trained_policy import load_policy as load_policy
    from rlightning.engine.callbacks import Callback as Callback
    from rlightning.env.base_env import BaseEnv as BaseEnv
    from rlightning.launch import assemble as assemble
    from rlightning.launch import build_data_buffer as build_data_buffer
    from rlightning.launch import build_engine as build_engine
    from rlightning.launch import build_env_group as build_env_group
    from rlightning.launch import build_policy_group as build_policy_group
    from rlightning.launch import launch as launch
    from rlightning.policy.base_policy import BasePolicy as BasePolicy
    from rlightning.policy.base_policy import PolicyRole as PolicyRole
    from rlightning.policy.policy_group import PolicyGroup as PolicyGroup
    from rlightning.registry import register as register
    from rlightning.types import EnvMeta as EnvMeta
    from rlightning.types import EnvRet as EnvRet
    from rlightning.types import PolicyResponse as PolicyResponse


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'rlightning' has no attribute {name!r}")
    module = importlib.import_module(_PUBLIC[name])
    # The module of that name can be called; in its place, the function would hide the module.
    value = module if name == "launch" else getattr(module, name)
    globals()[name] = value
    return value
