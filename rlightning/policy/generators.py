"""The sources of all randomness of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class Generators:
    """Three generators that follow from one seed.

    Attributes:
        own: For rollouts and training; another one on each policy.
        evaluation: Takes the place of ``own`` in evaluations.
        shared: Draws alike on all train policies.
        seed: What they follow from; None where nobody gave one.
        index: Index of the policy in its role.
    """

    def __init__(self, device: str) -> None:
        self.seed: int | None = None
        self.index = 0
        self.move(device)

    def move(self, device: str) -> None:
        """Begin anew on another device; the seed is kept for the networks, and not used here until it is set again."""
        self.own, self.evaluation, self.shared = (torch.Generator(device) for _ in range(3))

    def set_seed(self, seed: int, index: int, role: int) -> None:
        """Let all follow from a seed.

        Args:
            seed: Seed of the run.
            index: Index of the policy in its role.
            role: 0 for a train policy, 1 for an eval policy.
        """
        self.seed, self.index = seed, index
        own, evaluation = np.random.SeedSequence([seed, 77, role, index]).generate_state(2, np.uint64)
        self.own.manual_seed(int(own))
        self.evaluation.manual_seed(int(evaluation))
        # That of index 0, so that one learner draws what it would draw from its own.
        shared = np.random.SeedSequence([seed, 77, role, 0]).generate_state(1, np.uint64)[0]
        self.shared.manual_seed(int(shared))

    def get_state(self) -> dict[str, Any]:
        """Give the state of those that no other policy shares."""
        return {"generator": self.own.get_state(), "evaluation_generator": self.evaluation.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``get_state`` was called; other entries are left alone."""
        self.own.set_state(state["generator"])
        self.evaluation.set_state(state["evaluation_generator"])
