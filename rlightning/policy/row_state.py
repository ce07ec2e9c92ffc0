"""What a policy remembers of each row of its envs from one request to the next."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from rlightning.errors import ShapeError
from rlightning.types import EnvRet


class RowState:
    """A tensor per row of the envs, for policies that remember: hidden states, last actions, counts.

    Rows begin with the initial value wherever ``env_ret.is_first``. Training and evaluation have states of their own. A
    policy that uses it sets ``is_stateful``, so that the rows of an env worker always come to the same policy. It keeps
    the state in a checkpoint by ``extra_training_state`` and ``load_extra_training_state``. A row whose env worker
    moves to another policy begins with the initial value there.

    Args:
        initial: The value of a row at the first step of an episode, [...].

    >>> import numpy as np
    >>> count, first = RowState(torch.zeros(())), EnvRet.from_reset(np.zeros((2, 3)), 2)
    >>> request = EnvRet(first.observation, first.reward, first.terminated, first.truncated, first.is_reset)
    >>> request.env_id, request.is_first = torch.tensor([7, 7]), torch.tensor([True, True])
    >>> count.put(request, count.get(request) + 1)
    >>> request.is_first = torch.tensor([False, True])
    >>> count.get(request)
    tensor([1., 0.])
    """

    def __init__(self, initial: Tensor) -> None:
        self._initial = initial.detach().clone()
        self._held: dict[tuple[bool, int], Tensor] = {}

    def get(self, env_ret: EnvRet) -> Tensor:
        """Return the state of the rows of a request, [N, ...], on the request's device."""
        is_first = env_ret.is_first
        initial = self._initial.to(is_first.device)
        blocks = []
        for env_id, rows in _blocks(env_ret):
            held = self._held.get((env_ret.evaluation, env_id))
            fits = held is not None and len(held) == rows
            blocks.append(held if fits else initial.expand(rows, *initial.shape))
        state = torch.cat([block.to(is_first.device) for block in blocks if block is not None])
        return torch.where(is_first.reshape(-1, *[1] * initial.ndim), initial, state)

    def put(self, env_ret: EnvRet, state: Tensor) -> None:
        """Keep the state of the rows of a request, [N, ...], for the next one.

        Raises:
            ShapeError: If a row has another shape than the initial value, or the rows are not those of the request.
        """
        expected = (len(env_ret.env_id), *self._initial.shape)
        if state.shape != expected:
            raise ShapeError(f"the state of these rows has the shape {list(expected)}, got {list(state.shape)}")
        blocks = _blocks(env_ret)
        pieces = torch.split(state.detach(), [rows for _, rows in blocks])
        for (env_id, _), piece in zip(blocks, pieces, strict=True):
            self._held[env_ret.evaluation, env_id] = piece.clone()

    def state(self) -> dict[str, Tensor]:
        """Return the states of training for a checkpoint; those of evaluations end with them."""
        return {str(env_id): held for (evaluation, env_id), held in self._held.items() if not evaluation}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._held = {(False, int(env_id)): held for env_id, held in state.items()}


def _blocks(env_ret: EnvRet) -> list[tuple[int, int]]:
    """Return the env workers of a request in its order, with their numbers of rows."""
    return [(env_id, len(list(rows))) for env_id, rows in groupby(env_ret.env_id.tolist())]
