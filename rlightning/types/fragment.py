"""What some env workers collected in one go."""

from __future__ import annotations

from dataclasses import dataclass

from rlightning.types.tree import Tree


@dataclass(frozen=True, slots=True)
class Fragment:
    """Whole transitions of consecutive steps, all acted by the weights of one version.

    Attributes:
        env_ids: The env workers.
        num_envs: Sub-envs of each.
        version: Of the weights that acted.
        fields: The fields of a rollout block by name, numpy arrays [T, N, ...]; N is the sum of ``num_envs``.
    """

    env_ids: tuple[int, ...]
    num_envs: tuple[int, ...]
    version: int
    fields: dict[str, Tree]
