"""The global random generators of a process: Python's, numpy's, and torch's where torch is imported.

Code without a generator of its own draws from them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def seed_global_generators(entropy: Sequence[int]) -> None:
    """Seed them from whole numbers, 0 or more."""
    words = np.random.SeedSequence(entropy).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(words[1])  # noqa: NPY002 (users' code may use the old generator)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(int(words[2]))


def global_generators() -> dict[str, Any]:
    """Return their state."""
    state = {"python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002
    torch = sys.modules.get("torch")
    return state if torch is None else {**state, "torch": torch.get_rng_state()}


def set_global_generators(state: Mapping[str, Any]) -> None:
    """Set their state to one of ``global_generators``."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        torch.set_rng_state(state["torch"])
