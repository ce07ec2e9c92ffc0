"""Envs: what a user subclasses, the worker that runs one, and the group of all workers."""

from rlightning.env.base_env import BaseEnv
from rlightning.env.env_group import EnvGroup
from rlightning.env.env_worker import EnvWorker
from rlightning.env.episodes import Episode

__all__ = ["BaseEnv", "EnvGroup", "EnvWorker", "Episode"]
