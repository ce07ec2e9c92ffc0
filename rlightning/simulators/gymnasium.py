"""Envs of Gymnasium, by id or by entry point."""

from __future__ import annotations

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
from rlightning.env.episodes import SUCCESS
from rlightning.env.text import TextAsTokens, has_text
from rlightning.errors import ConfigError, MissingDependency, Problem, nearest_name
from rlightning.registry import import_named, listed
from rlightning.simulators.episode_info import EpisodeInfo
from rlightning.simulators.loop import EnvLoop
from rlightning.simulators.mujoco.drawing import prepare_to_draw
from rlightning.simulators.mujoco.gymnasium_state import model_digest
from rlightning.simulators.mujoco.loading import quiet_loading
from rlightning.simulators.mujoco.names import actuator_names
from rlightning.simulators.vector import VectorRows
from rlightning.simulators.wrapping import check_wrappers, steps_inside, wrap
from rlightning.types import EnvMeta, EnvRet, PolicyResponse

_OWN_NAMESPACE = "rlightning/"
_OWN_MODULE = "rlightning.simulators.catch"
"""Module that registers the ids of this package's namespace on import."""


class GymnasiumEnv(BaseEnv):
    """Any env of Gymnasium: a registered id, or a user's class.

    ``config.name`` is an id (``HalfCheetah-v5``), an id with the module that registers it (``my_module:MyEnv-v0``), or
    an entry point (``my_module:MyEnv``). An entry point is a ``gymnasium.Env`` class, a ``gymnasium.vector.VectorEnv``
    class, or a function that builds one of these; a function with an argument ``num_envs`` builds a vector env.
    ``config.env_kwargs`` are its arguments. Texts in the observations of plain envs become token ids (``config.text``).

    ``render`` needs ``render_mode: rgb_array`` under ``env_kwargs``. MuJoCo renders without a display if the
    environment variable ``MUJOCO_GL`` is ``egl`` or ``osmesa``; it is read when the first frame is rendered.

    Raises:
        ConfigError: If there is no such env, or if it does not support the configured vectorization or time limit.
        MissingDependency: If a package that the env needs is not installed.
        UnsupportedSpace: If a space of the env is not an array of fixed shape, nor a dict or tuple of such arrays.
    """

    def __init__(self, config: EnvConfig) -> None:
        super().__init__(config)
        try:
            factory = _find(config.name)
            self._rows = rows = factory.build(config)
        except gym.error.DependencyNotInstalled as error:
            raise MissingDependency(f"{config.name} needs a package that is not installed: {error}") from error
        limit = config.max_episode_steps or factory.time_limit
        self.meta = EnvMeta(
            config.name,
            rows.observation_space,
            rows.action_space,
            rows.num_envs,
            limit,
            action_names=actuator_names(getattr(rows.env.unwrapped, "model", None), rows.action_space.shape),
        )
        self.resets_with_next_step = rows.resets_with_next_step
        self.render_fps = self._read_fps()
        self._models = self._digest_models()
        self._is_rendering = False

    @classmethod
    def check(cls, config: EnvConfig) -> Sequence[Problem]:
        problems = list(check_wrappers(config))
        try:
            found = _look_up(config.name)
        except ConfigError as error:
            return [*error.problems, *problems]
        if not isinstance(found, EnvSpec) and not _is_allowed(found):
            message = (
                f"{config.name} is no class of envs, so that it is not called; a function that builds envs is taken "
                f"from a module of yours that is listed under imports"
            )
            problems.insert(0, Problem("env.name", message))
        return problems

    def reset(self, seed: Sequence[int] | None = None, options: dict[str, Any] | None = None) -> EnvRet:
        return self._rows.reset(seed, options)

    def step(self, response: PolicyResponse) -> EnvRet:
        return self._rows.step(response.action_for_env)

    def close(self) -> None:
        self._rows.close()

    def render(self) -> np.ndarray[Any, Any] | None:
        try:
            if not self._is_rendering:
                for env in self._rows.envs:
                    prepare_to_draw(env.unwrapped)
                self._is_rendering = True
            frame = self._rows.render()
        except gym.error.DependencyNotInstalled as error:
            raise MissingDependency(f"drawing {self.config.name} needs a package: {error}") from error
        return None if frame is None else np.array(frame)

    def get_state(self) -> dict[str, Any] | None:
        # A MuJoCo model is not part of the state: it is the same in every run, unless the env changes it.
        return super().get_state() if self._digest_models() == self._models else None

    def _read_fps(self) -> float | None:
        env = self._rows.env
        fps, dt = (env.metadata or {}).get("render_fps"), getattr(env.unwrapped, "dt", None)
        if not fps and isinstance(dt, int | float) and dt > 0:
            fps = 1.0 / dt
        return float(fps) / steps_inside(env) if fps else None

    def _digest_models(self) -> list[str]:
        return [model_digest(env.unwrapped) for env in self._rows.envs]


@dataclass(frozen=True, slots=True)
class _EnvFactory:
    """Builds the sub-envs of one name.

    Attributes:
        name: The name in the configuration.
        single: Builds one plain env; called with a time limit (or None) and the env's arguments. None if there is only
            a vector env.
        native: Builds a vector env; called with ``num_envs`` and the env's arguments. None if there is no vector env.
        native_kwargs: Registered arguments of ``native``.
        time_limit: The registered time limit.
        arguments: Names of the env's arguments, as far as they are known.
    """

    name: str
    single: Callable[..., Any] | None
    native: Callable[..., Any] | None
    native_kwargs: dict[str, Any] = field(default_factory=dict)
    time_limit: int | None = None
    arguments: Sequence[str] = ()

    def build(self, config: EnvConfig) -> EnvLoop | VectorRows:
        """Build the sub-envs of a configuration."""
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
            suggestion = nearest_name(misspelt[1], self.arguments, "env.env_kwargs.") if misspelt else ""
            message = f"{self.name} cannot be built: {error}"
            raise ConfigError(Problem("env.env_kwargs", message, suggestion=suggestion)) from error
        if not isinstance(env, wanted):
            kind = f"{wanted.__module__.partition('.')[0]}.{wanted.__name__}"
            raise ConfigError(Problem("env.name", f"{self.name} built a {type(env).__name__}, which is no {kind}"))
        return env

    def _takes(self, kwargs: dict[str, Any]) -> bool:
        """Whether the native vector env has these arguments."""
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


def _find(name: str) -> _EnvFactory:
    found = _look_up(name)
    return _from_spec(name, found) if isinstance(found, EnvSpec) else _from_entry_point(name, found)


def _look_up(name: str) -> EnvSpec | Callable[..., Any]:
    """Return the entry point or the spec of a name, without calling it; imports the modules that it names.

    Raises:
        ConfigError: If there is no such env.
    """
    module, _, attribute = name.rpartition(":")
    if name.startswith(_OWN_NAMESPACE):
        importlib.import_module(_OWN_MODULE)
    own: list[str] = []
    if module:
        target: Any = import_named(module, name, "env.name")
        own = [f"{module}:{each}" for each, value in vars(target).items() if callable(value)]
        for part in attribute.split("."):
            target = getattr(target, part, None)
        if callable(target):
            return cast("Callable[..., Any]", target)
    try:
        return gym.spec(attribute)
    except gym.error.Error as error:
        suggestion = nearest_name(attribute, gym.registry) or nearest_name(name, own)
        message = f"Gymnasium has no env {name!r} ({error}); an env of your own is named my_module:MyEnv"
        raise ConfigError(Problem("env.name", message, suggestion=suggestion)) from error


def _is_allowed(target: Any) -> bool:
    """Whether a configuration may call an object: an env class, or a function of a module under ``imports``."""
    if inspect.isclass(target):
        return issubclass(target, gym.Env | gym.vector.VectorEnv)
    module = str(getattr(target, "__module__", ""))
    return inspect.isroutine(target) and any(f"{module}.".startswith(f"{each}.") for each in listed)


def _from_entry_point(name: str, target: Callable[..., Any]) -> _EnvFactory:
    if inspect.isclass(target):
        is_vector = issubclass(target, gym.vector.VectorEnv)
    else:
        is_vector = "num_envs" in inspect.signature(target).parameters
    if is_vector:
        return _EnvFactory(name, None, target, arguments=_argument_names(target))

    def single(time_limit: int | None, **kwargs: Any) -> Any:
        env = target(**kwargs)
        return env if time_limit is None else gym.wrappers.TimeLimit(env, time_limit)

    return _EnvFactory(name, single, None, arguments=_argument_names(target))


def _from_spec(name: str, spec: EnvSpec) -> _EnvFactory:
    single, native, arguments = None, None, list[str]()
    if spec.entry_point is not None:
        # Loaded now, so that MuJoCo is imported before ``quiet_loading`` looks for it.
        arguments = _argument_names(_creator(spec.entry_point))

        def single(time_limit: int | None, **kwargs: Any) -> Any:
            return gym.make(spec, max_episode_steps=time_limit, disable_env_checker=True, **kwargs)

    if spec.vector_entry_point is not None and not spec.additional_wrappers:
        native = _creator(spec.vector_entry_point)
    return _EnvFactory(name, single, native, spec.kwargs, spec.max_episode_steps, arguments or _argument_names(native))


def _argument_names(creator: Callable[..., Any] | None) -> list[str]:
    try:
        return [] if creator is None else list(inspect.signature(creator).parameters)
    except (TypeError, ValueError):  # not written in Python
        return []


def _creator(entry_point: Any) -> Callable[..., Any]:
    return entry_point if callable(entry_point) else load_env_creator(entry_point)
