"""Requests of several env workers become one forward pass, and its answer becomes theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlightning.errors import ShapeError
from rlightning.types import EnvRet, PolicyResponse, Tree
from rlightning.types.tree import concat_rows, split_rows, to_host, tree_leaves, tree_map


def join_requests(env_rets: Sequence[EnvRet], device: str) -> EnvRet:
    """Join results of env workers along the rows, as owned tensors on ``device``.

    The policy may write into them: nobody else holds them.
    """
    return EnvRet(
        observation=concat_rows([ret.observation for ret in env_rets], device),
        reward=concat_rows([ret.reward for ret in env_rets], device),
        terminated=concat_rows([ret.terminated for ret in env_rets], device),
        truncated=concat_rows([ret.truncated for ret in env_rets], device),
        is_reset=concat_rows([ret.is_reset for ret in env_rets], device),
        final_observation=_join_final(env_rets, device),
        info=_join_info(env_rets, device),
    )


def split_response(response: PolicyResponse, counts: Sequence[int], version: int) -> list[PolicyResponse]:
    """Cut an answer into those of the env workers, as arrays on the host, stamped with the version that acted.

    Raises:
        ShapeError: If a field has another number of rows than the requests together.
    """
    rows = sum(counts)
    fields = (response.action, response.env_action, response.extras)
    for leaf in tree_leaves([field for field in fields if field is not None]):
        if leaf.shape[:1] != (rows,):
            raise ShapeError(f"rollout_step answered {tuple(leaf.shape)} to {rows} rows: axis 0 must be the rows [N]")
    action, env_action = tree_map(to_host, response.action), response.env_action
    if env_action is not None:
        env_action = tree_map(to_host, env_action)
    extras = {name: to_host(value) for name, value in response.extras.items()}
    if len(counts) == 1:
        return [PolicyResponse(action, env_action, extras, version)]
    actions = split_rows(action, counts)
    env_actions = [None] * len(counts) if env_action is None else split_rows(env_action, counts)
    pieces = split_rows(extras, counts)
    return [PolicyResponse(*fields, version) for fields in zip(actions, env_actions, pieces, strict=True)]


def _join_final(env_rets: Sequence[EnvRet], device: str) -> Tree | None:
    if all(ret.final_observation is None for ret in env_rets):
        return None
    finals = [ret.observation if ret.final_observation is None else ret.final_observation for ret in env_rets]
    return concat_rows(finals, device)


def _join_info(env_rets: Sequence[EnvRet], device: str) -> dict[str, Tree]:
    # Envs of different kinds may report different things: what only some report is not for a batch.
    common = set(env_rets[0].info).intersection(*(ret.info for ret in env_rets[1:]))
    arrays = {name for name in common if isinstance(env_rets[0].info[name], np.ndarray)}
    return {name: concat_rows([ret.info[name] for ret in env_rets], device) for name in sorted(arrays)}
