"""The sources of all randomness of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlightning.errors import CheckpointError
from rlightning.runtime.generators import global_generators, seed_global_generators, set_global_generators


class Generators:
    """Three generators that follow from one seed.

    The global ones of the process are lent to evaluations, since an author's code may draw from those.

    Attributes:
        own: For rollouts and training; another one on each policy.
        evaluation: Takes the place of ``own`` in evaluations.
        shared: Draws alike on all train policies.
        seed: What they follow from; None without a seed.
        index: Index of the policy in its role.
    """

    def __init__(self, device: str) -> None:
        self.seed: int | None = None
        self.index = 0
        self._lent: dict[str, Any] | None = None
        self.move(device)

    def move(self, device: str) -> None:
        """Begin anew on another device; the seed is kept for the networks, and not used here until it is set again."""
        self.own, self.evaluation, self.shared = (torch.Generator(device) for _ in range(3))

    def set_seed(self, seed: int, index: int, role: int) -> None:
        """Seed all generators.

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

    def begin_evaluation(self, seed: int) -> None:
        """Seed what evaluations draw, also from the global generators until they are returned."""
        self.evaluation.manual_seed(seed)
        if self._lent is None:  # else an evaluation failed
            self._lent = global_generators()
        seed_global_generators([seed])

    def end_evaluation(self) -> None:
        """Restore the global generators to where they were lent."""
        if self._lent is not None:
            set_global_generators(self._lent)
            self._lent = None

    def get_state(self) -> dict[str, Any]:
        """Return the state of those that no other policy shares."""
        return {"generator": self.own.get_state(), "evaluation_generator": self.evaluation.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where ``get_state`` was called, with all generators that the state knows; the rest is left alone.

        Raises:
            CheckpointError: If the state is that of generators of another device.
        """
        for generator, name in ((self.own, "generator"), (self.evaluation, "evaluation_generator")):
            _put_back(generator, state[name])
        if "shared_generator" in state:
            _put_back(self.shared, state["shared_generator"])
        if "global_generators" in state:  # actors had none in earlier checkpoints
            set_global_generators(state["global_generators"])


def _put_back(generator: torch.Generator, state: torch.Tensor) -> None:
    try:
        generator.set_state(state)
    except (RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"the state of a random generator is not one for {generator.device.type} ({error}): the run had its "
            f"policies on another device (policy.train_num_gpus, policy.eval_num_gpus)"
        ) from error
