"""A device for tests that is another part of the same memory.

A storage that is left is spoiled: whoever still refers to it reads NaNs.
"""

from __future__ import annotations

import torch

from rlightning.algorithms.ppo import PPO
from rlightning.policy.memory import Memory
from rlightning.registry import register
from tests.doubles import LinearPolicy


class Journey:
    """Counts the bytes that went each way; fails at the storage number ``fail_at``."""

    def __init__(self, fail_at=None):
        self.out, self.back, self.moves, self.fail_at = 0, 0, 0, fail_at
        self.left = []

    def to_host(self, storage):
        self.out += storage.nbytes()
        return self.copy(storage)

    def to_device(self, storage):
        self.back += storage.nbytes()
        return self.copy(storage)

    def copy(self, storage):
        self.moves += 1
        if self.moves == self.fail_at:
            raise torch.OutOfMemoryError("the island is full")
        copied = storage.clone()
        self.left.append(storage)
        return copied

    def sink(self):
        """Spoil all that was left."""
        for storage in self.left:
            torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)
        self.left.clear()

    def memory(self):
        return SinkingMemory(self)


class SinkingMemory(Memory):
    def __init__(self, journey):
        super().__init__(journey.to_host, journey.to_device)
        self.journey = journey

    def offload(self, part, tensors):
        super().offload(part, tensors)
        self.journey.sink()

    def reload(self, part, tensors):
        super().reload(part, tensors)
        self.journey.sink()


class Traveller(LinearPolicy):
    """A linear policy whose memory really moves."""

    def __init__(self, *args):
        super().__init__(*args)
        self.depart()

    def depart(self):
        self.journey = Journey()
        self._memory = self._attributes["_memory"] = self.journey.memory()

    def count_bytes(self):
        return self.journey.out, self.journey.back

    def get_offloaded(self):
        return sorted(self._memory.offloaded)


@register("policy", "travelling_ppo")
class TravellingPPO(PPO):
    """PPO whose memory really moves."""

    def __init__(self, *args):
        super().__init__(*args)
        self.journey = Journey()
        self._memory = self._attributes["_memory"] = self.journey.memory()

    def count_bytes(self):
        return self.journey.out, self.journey.back
