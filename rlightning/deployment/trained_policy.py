"""A trained policy that acts on arrays, without envs and without Ray."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium as gym
import numpy as np

from rlightning.config import Config, PolicyConfig
from rlightning.configuring.imports import load_imports
from rlightning.device import available_gpus
from rlightning.engine.policy_spec import find_checkpoint, load_trained
from rlightning.env.arrays import Leaf, all_finite, checked, map_parts, space_leaves
from rlightning.errors import CheckpointError, ConfigError, ProtocolError, ShapeError
from rlightning.policy.base_policy import BasePolicy, PolicyRole
from rlightning.registry import lookup
from rlightning.types import EnvMeta, EnvRet, Tree
from rlightning.types.spaces import meta_from_state
from rlightning.types.tree import tree_leaves, tree_map

logger = logging.getLogger(__name__)


class TrainedPolicy:
    """A policy that acts on observations of one env, or of N at a time.

    Normalisation of observations and the mapping to the actions of the env are part of it. It serves one thread.

    Attributes:
        policy: The policy itself, in role EVAL.
        meta: Description of the env that it was trained for, as the policy saw it: after all wrappers.
        checkpoint: Folder of the checkpoint.
        version: Version of the weights.
    """

    def __init__(self, policy: BasePolicy, checkpoint: Path) -> None:
        """Begin before the first observation.

        Args:
            policy: An initialised policy of role EVAL with weights.
            checkpoint: Where they come from.
        """
        assert policy.env_meta is not None
        self.policy, self.checkpoint, self.version = policy, checkpoint, policy.version
        self.meta: EnvMeta = policy.env_meta
        self._inputs = space_leaves(self.meta.observation_space)
        self._outputs = space_leaves(self.meta.action_space)
        self._first: np.ndarray[Any, np.dtype[np.bool_]] | None = None

    @property
    def observation_space(self) -> gym.Space[Any]:
        """Space of one observation."""
        return self.meta.observation_space

    @property
    def action_space(self) -> gym.Space[Any]:
        """Space of one action."""
        return self.meta.action_space

    def act(self, observation: Tree, deterministic: bool = True) -> Tree:
        """Choose an action for each observation.

        Args:
            observation: One observation, or N of them with a leading axis: arrays or tensors of the observation space,
                in dicts and tuples where the space has them.
            deterministic: Whether to take the mode of the policy; otherwise the action is sampled.

        Returns:
            The action for the env, as an array of the action space's dtype; with a leading axis [N] where the
            observation has one.

        Raises:
            ShapeError: If the observation is not of the space, or has a number that is not finite.
            ProtocolError: If N changes between the calls of a policy with a state per row; call ``reset`` first.
        """
        rows, is_one = self._as_rows(observation)
        n = len(tree_leaves(rows)[0])
        if self._first is None or (len(self._first) != n and not self.policy.is_stateful):
            self._first = np.ones(n, np.bool_)
        if len(self._first) != n:
            raise ProtocolError(
                f"the last observation had {len(self._first)} rows and this one has {n}, and the policy keeps a state "
                f"per row: call reset() before another number of rows"
            )
        first, self._first = self._first, np.zeros(n, np.bool_)
        never = np.zeros(n, np.bool_)
        env_ret = EnvRet(rows, np.zeros(n, np.float32), never, never, is_reset=first, is_first=first)
        response = self.policy._rollout_batch(env_ret, deterministic=deterministic, env_ids=(0,))[0]
        action = tree_map(_cast, response.action_for_env, self._outputs)
        return tree_map(lambda leaf: leaf[0], action) if is_one else action

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Begin new episodes; of consequence for a policy with a state per row.

        Args:
            rows: Indices of the rows whose episodes begin with the next observation; None means all of them, and the
                next observation may have another number of rows.
        """
        if rows is None or self._first is None:
            self._first = None
        else:
            self._first[list(rows)] = True

    def _as_rows(self, observation: Tree) -> tuple[Tree, bool]:
        """Return the observation with a leading axis, and whether it had none."""
        leaf = observation
        expected = self._inputs
        while not isinstance(expected, Leaf):  # any leaf of a dict or tuple shows whether there is a leading axis
            key = next(iter(expected)) if isinstance(expected, dict) else 0
            try:
                leaf, expected = leaf[key], expected[key]
            except (IndexError, KeyError, TypeError) as error:
                raise ShapeError(
                    f"the observation has no part {key!r}; its space is {self.observation_space}"
                ) from error
        shape = np.shape(leaf)
        is_one = shape == expected.shape
        if not is_one and shape[1:] != expected.shape:
            raise ShapeError(
                f"observation{expected.path} has shape {list(shape)}; {list(expected.shape)} or [N, ...] of it expected"
            )
        if not is_one and not shape[0]:
            raise ShapeError(f"observation{expected.path} has no row")
        count = () if is_one else (shape[0],)
        rows = self._convert(observation, self._inputs, count)
        return rows, is_one

    def _convert(self, value: Tree, leaves: Tree, count: tuple[int, ...]) -> Tree:
        if not isinstance(leaves, Leaf):
            return map_parts(lambda part, inner: self._convert(part, inner, count), value, leaves, "observation")
        name = f"observation{leaves.path}"
        array = checked(value, (*count, *leaves.shape), leaves.dtype, name)
        if not all_finite(array):
            raise ShapeError(f"{name} has a number that is not finite")
        array = np.array(array, leaves.handed_out)
        return array if count else array[None]


def _cast(action: Any, leaf: Leaf) -> Any:
    return np.asarray(action).astype(leaf.dtype, copy=False)


def load_policy(
    source: Path | str,
    *,
    checkpoint: str = "best",
    device: Literal["cpu", "auto"] = "cpu",
    seed: int | None = None,
    imports: Sequence[str] | None = None,
) -> TrainedPolicy:
    """Load what a run trained, to act in plain Python.

    >>> policy = load_policy("runs/ppo_cartpole-20261201-120000")  # doctest: +SKIP
    >>> action = policy.act(observation)  # doctest: +SKIP

    Args:
        source: Folder of a run or of a checkpoint.
        checkpoint: Which one of a run: "best" (the last one where none was marked), "last", or its name.
        device: "auto" computes on a GPU if there is one.
        seed: Seed of sampled actions; None means that of the run.
        imports: Modules or files with the policy's class if it is your own; None means those of the run.

    Raises:
        CheckpointError: If there is no such run or checkpoint, or it does not fit the policy's class.
        ConfigError: If the policy's class cannot be found.
    """
    folder = find_checkpoint(source, checkpoint)
    state, spec = load_trained(folder)
    if spec is not None and spec["env_meta"] is not None:
        read_meta = partial(meta_from_state, spec["env_meta"])
    else:
        run = _config_of_run(folder)
        spec = {"policy": run.policy.model_dump(), "imports": run.imports, "seed": run.seed}
        read_meta = partial(_build_env_once, run, folder)
    _, problems = load_imports(spec["imports"] if imports is None else imports)
    if problems:
        raise ConfigError(problems)
    config = PolicyConfig.model_validate(spec["policy"])
    gpus = 1.0 if device == "auto" and available_gpus() else 0.0
    # What compiles, compiles at the first call, which may take minutes.
    config = config.model_copy(update={"eval_num_gpus": gpus, "compile": False})
    policy = cast("BasePolicy", lookup("policy", config.type)(config, PolicyRole.EVAL))
    policy.set_seed(spec["seed"] if seed is None else seed)
    policy.init_eval(None, read_meta())
    policy.load_training_state(state["train"], act_only=True)
    return TrainedPolicy(policy, folder)


def _config_of_run(checkpoint: Path) -> Config:
    """Read the configuration of the run of a checkpoint that does not store all that its policy was built for.

    Raises:
        CheckpointError: If the checkpoint does not lie in the folder of its run.
    """
    from rlightning.observability.run_folder import (
        RunFolder,
    )  # with the grammar of configurations, whose import is slow

    folder = checkpoint.resolve().parents[1]
    if not (folder / "run.json").is_file():
        raise CheckpointError(
            f"{checkpoint} was made by an older version, which did not store spaces: load it from the folder of its run"
        )
    return RunFolder.open(folder).config


def _build_env_once(config: Config, checkpoint: Path) -> EnvMeta:
    """Build one env of a run to read its spaces."""
    from rlightning.assembly.sizes import env_meta
    from rlightning.assembly.workers import plan_workers

    logger.warning("%s has no spaces, or none that can be stored: one env of the run is built to read them", checkpoint)
    return env_meta(plan_workers(config))
