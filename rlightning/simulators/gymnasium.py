"""Envs of Gymnasium, by id or by entry point."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator

from rlightning.config import EnvConfig
from rlightning.env.base_env import BaseEnv
from rlightning.env.env_worker import SUCCESS
from rlightning.env.text import TextAsTokens, has_text
from rlightning.errors import ConfigError, MissingDependency, Problem
from rlightning.registry import listed
from rlightning.simulators.episode_info import EpisodeInfo
from rlightning.simulators.loop import EnvLoop
from rlightning.simulators.mujoco.drawing import prepare_to_draw
from rlightning.simulators.mujoco.gymnasium_state import model_digest
from rlightning.simulators.mujoco.loading import quiet_loading
from rlightning.simulators.vector import VectorRows
from rlightning.simulators.wrapping import check_wrappers, steps_inside, wrap
from rlightning.types import EnvMeta, EnvRet, PolicyResponse

_OWN_NAMESPACE = "rlightning/"
_OWN_MODULE = "rlightning.simulators.catch"
"""Registers the ids of our own namespace when it is imported."""


class GymnasiumEnv(BaseEnv):
    """Any env of Gymnasium: a registered id, or a user's own class.

    ``config.name`` is an id (``HalfCheetah-v5``), an id with the module that registers it (``my_module:MyEnv-v0``), or
    an entry point (``my_module:MyEnv``): a ``gymnasium.Env`` class, a ``gymnasium.vector.VectorEnv`` class, or a
    function that builds one; a function with an argument ``num_envs`` is taken to build a vector env.
    ``config.env_kwargs`` are its arguments. Texts in the observations of plain envs become token ids (``config.text``).

    For ``render`` give ``render_mode: rgb_array`` under ``env_kwargs``. MuJoCo draws without a screen where the
    environment variable ``MUJOCO_GL`` is ``egl`` or ``osmesa``; it is read when the first frame is drawn.

    Raises:
        ConfigError: If there is no such env, or it cannot be vectorised or limited as asked.
        MissingDependency: If a package that the env needs is not installed.
        UnsupportedSpace: If a space of the env is no array of fixed shape, nor a dict or tuple of them.
    """

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        try:
            source = _find(config.name)
            self._rows = source.build(config)
        except gym.error.DependencyNotInstalled as error:
            raise MissingDependency(f"{config.name} needs a package that is not installed: {error}") from error
        limit = config.max_episode_steps or source.time_limit
        self.meta = EnvMeta(
            config.name, self._rows.observation_space, self._rows.action_space, self._rows.num_envs, limit
        )
        self.resets_with_next_step = getattr(self._rows, "resets_with_next_step", False)
        self.render_fps = self._read_fps()
        self._models = self._digest_models()
        self._is_drawn = False

    @classmethod
    def check(cls, config: EnvConfig) -> Sequence[Problem]:
        wrong = list(check_wrappers(config))
        try:
            found = _look_up(config.name)
        except ConfigError as error:
            return [*error.problems, *wrong]
        if not isinstance(found, EnvSpec) and not _may_be_called(found):
            message = (
                f"{config.name} is no class of envs, so that it is not called; a function that builds envs is taken "
                f"from a module of yours that is listed under imports"
            )
            wrong.insert(0, Problem("env.name", message))
        return wrong

    def reset(self, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None) -> EnvRet:
        return self._rows.reset(seed, options)

    def step(self, response: PolicyResponse) -> EnvRet:
        return self._rows.step(response.action_for_env)

    def close(self) -> None:
        self._rows.close()

    def render(self) -> np.ndarray[Any, Any] | None:
        try:
            if not self._is_drawn:
                for env in self._envs():
                    prepare_to_draw(env.unwrapped)
                self._is_drawn = True
            frame = self._rows.render()
        except gym.error.DependencyNotInstalled as error:
            raise MissingDependency(f"drawing {self.config.name} needs a package: {error}") from error
        return None if frame is None else np.array(frame)

    def get_state(self) -> dict[str, Any] | None:
        # A MuJoCo model is not part of the state, since it is the same in every run, unless the env changes it.
        return super().get_state() if self._digest_models() == self._models else None

    def _read_fps(self) -> float | None:
        env = self._rows.envs[0] if isinstance(self._rows, EnvLoop) else self._rows.env
        fps, dt = (env.metadata or {}).get("render_fps"), getattr(env.unwrapped, "dt", None)
        if not fps and isinstance(dt, int | float) and dt > 0:
            fps = 1.0 / dt
        return float(fps) / steps_inside(env) if fps else None

    def _digest_models(self) -> list[str]:
        return [model_digest(env.unwrapped) for env in self._envs()]

    def _envs(self) -> list[Any]:
        """List the plain envs; a native vector env has none."""
        if isinstance(self._rows, EnvLoop):
            return self._rows.envs
        return list(getattr(self._rows.env.unwrapped, "envs", []))


@dataclass(frozen=True, slots=True)
class _Source:
    """How to build the sub-envs of one name.

    Attributes:
        name: Its name in the configuration.
        single: Builds one plain env; called with a time limit (or None) and the env's arguments. None where there is
            a vector env only.
        native: Builds a vector env; called with ``num_envs`` and the env's arguments. None where there is none.
        native_kwargs: Registered arguments of ``native``.
        time_limit: The registered time limit.
        arguments: Names of the arguments of what is built, as far as they are known.
    """

    name: str
    single: Callable[..., Any] | None
    native: Callable[..., Any] | None
    native_kwargs: dict[str, Any] = field(default_factory=dict)
    time_limit: int | None = None
    arguments: Sequence[str] = ()

    def build(self, config: EnvConfig) -> EnvLoop | VectorRows:
        """Build the sub-envs that ``config`` asks for."""
        limit = config.max_episode_steps or self.time_limit
        if self._is_native(config, limit):
            return self._build_native(config, limit)
        if self.single is None:
            raise ConfigError(
                Problem(
                    "env.vectorization",
                    f"{self.name} has a vector implementation only: use native or auto, without wrappers",
                )
            )
        return EnvLoop([self._build_single(config) for _ in range(config.num_envs)], _episode_info(config))

    def _build_single(self, config: EnvConfig) -> gym.Env[Any, Any]:
        kwargs = deepcopy(config.env_kwargs)
        env = wrap(self._call(self.single, gym.Env, time_limit=config.max_episode_steps, **kwargs), config)
        return TextAsTokens(env, config.text) if has_text(env.observation_space) else env

    def _is_native(self, config: EnvConfig, limit: int | None) -> bool:
        if config.vectorization == "sync" or (config.wrappers and config.vectorization == "auto"):
            return False
        if config.vectorization == "auto" and self.single is not None:
            return self.native is not None and self._takes({**config.env_kwargs, **_limited(limit)})
        if self.native is None:
            raise ConfigError(
                Problem("env.vectorization", f"{self.name} has no vector implementation: use sync or auto")
            )
        return True

    def _build_native(self, config: EnvConfig, limit: int | None) -> VectorRows:
        takes_limit = self._takes({**config.env_kwargs, **_limited(limit)})
        kwargs = deepcopy({**self.native_kwargs, **config.env_kwargs, **(_limited(limit) if takes_limit else {})})
        env = self._call(self.native, gym.vector.VectorEnv, num_envs=config.num_envs, **kwargs)
        if env.num_envs != config.num_envs:
            raise ConfigError(
                Problem("env.num_envs", f"{self.name} was asked for {config.num_envs} sub-envs and has {env.num_envs}")
            )
        return VectorRows(env, None if takes_limit else limit, _episode_info(config))

    def _call(self, creator: Callable[..., Any] | None, wanted: type[Any], **kwargs: Any) -> Any:
        assert creator is not None
        try:
            with quiet_loading():
                env = creator(**kwargs)
        except TypeError as error:
            misspelt = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            nearest = difflib.get_close_matches(misspelt[1], self.arguments, n=1) if misspelt else []
            suggestion = f"env.env_kwargs.{nearest[0]}" if nearest else ""
            message = f"{self.name} cannot be built: {error}"
            raise ConfigError(Problem("env.env_kwargs", message, suggestion=suggestion)) from error
        if not isinstance(env, wanted):
            kind = f"{wanted.__module__.partition('.')[0]}.{wanted.__name__}"
            raise ConfigError(Problem("env.name", f"{self.name} built a {type(env).__name__}, which is no {kind}"))
        return env

    def _takes(self, kwargs: dict[str, Any]) -> bool:
        """Tell whether the native vector env has these arguments."""
        assert self.native is not None
        try:
            inspect.signature(self.native).bind(num_envs=1, **{**self.native_kwargs, **kwargs})
        except TypeError:
            return False
        return True


def _episode_info(config: EnvConfig) -> EpisodeInfo:
    return EpisodeInfo(config.logged_info, [SUCCESS], config.num_envs)


def _limited(limit: int | None) -> dict[str, int]:
    return {} if limit is None else {"max_episode_steps": limit}


def _find(name: str) -> _Source:
    """Find what a name stands for: an entry point, or an id that a module may have to register first."""
    found = _look_up(name)
    return _from_spec(name, found) if isinstance(found, EnvSpec) else _from_entry_point(name, found)


def _look_up(name: str) -> EnvSpec | Callable[..., Any]:
    """Find what a name stands for without a call of it; modules are imported.

    Raises:
        ConfigError: If there is no such env.
    """
    module, _, attribute = name.rpartition(":")
    if name.startswith(_OWN_NAMESPACE):
        importlib.import_module(_OWN_MODULE)
    own: list[str] = []
    if module:
        target: Any = _import(module, name)
        own = [f"{module}:{each}" for each, value in vars(target).items() if callable(value)]
        for part in attribute.split("."):
            target = getattr(target, part, None)
        if callable(target):
            return cast("Callable[..., Any]", target)
    try:
        return gym.spec(attribute)
    except gym.error.Error as error:
        nearest = difflib.get_close_matches(attribute, gym.registry, n=1) or difflib.get_close_matches(name, own, n=1)
        raise ConfigError(
            Problem(
                "env.name",
                f"Gymnasium has no env {name!r} ({error}); an env of your own is named my_module:MyEnv",
                suggestion=nearest[0] if nearest else "",
            )
        ) from error


def _may_be_called(target: Any) -> bool:
    """Tell whether a configuration may name something: an env class, or a function of a module under ``imports``."""
    if inspect.isclass(target):
        return issubclass(target, gym.Env | gym.vector.VectorEnv)
    module = str(getattr(target, "__module__", ""))
    return inspect.isroutine(target) and any(f"{module}.".startswith(f"{each}.") for each in listed)


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            Problem("env.name", f"{name}: there is no module {error.name!r}; a file of your own goes under imports:")
        ) from error


def _from_entry_point(name: str, target: Callable[..., Any]) -> _Source:
    if inspect.isclass(target):
        is_vector = issubclass(target, gym.vector.VectorEnv)
    else:
        is_vector = "num_envs" in inspect.signature(target).parameters
    if is_vector:
        return _Source(name, None, target, arguments=_argument_names(target))

    def single(time_limit: int | None, **kwargs: Any) -> Any:
        env = target(**kwargs)
        return env if time_limit is None else gym.wrappers.TimeLimit(env, time_limit)

    return _Source(name, single, None, arguments=_argument_names(target))


def _from_spec(name: str, spec: EnvSpec) -> _Source:
    single, native, arguments = None, None, list[str]()
    if spec.entry_point is not None:
        # Loaded now, so that what it imports is there before models are loaded quietly.
        arguments = _argument_names(_creator(spec.entry_point))

        def single(time_limit: int | None, **kwargs: Any) -> Any:
            return gym.make(spec, max_episode_steps=time_limit, disable_env_checker=True, **kwargs)

    if spec.vector_entry_point is not None and not spec.additional_wrappers:
        native = _creator(spec.vector_entry_point)
    return _Source(name, single, native, spec.kwargs, spec.max_episode_steps, arguments or _argument_names(native))


def _argument_names(creator: Callable[..., Any] | None) -> list[str]:
    try:
        return [] if creator is None else list(inspect.signature(creator).parameters)
    except (TypeError, ValueError):  # it is not written in Python
        return []


def _creator(entry_point: Any) -> Callable[..., Any]:
    return entry_point if callable(entry_point) else load_env_creator(entry_point)
