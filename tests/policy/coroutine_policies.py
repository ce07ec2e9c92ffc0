"""Policies whose requests overlap, importable by worker processes."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import torch

from rlightning.types import PolicyResponse
from tests.doubles import LinearPolicy


class Held(LinearPolicy):
    """Answers when it is let, and says who answered and who finished; a row that observes 13 is an error."""

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.is_open, self.began, self.most, self.inside = False, [], 0, 0

    async def rollout_step(self, env_ret, *, deterministic=False):
        self.began.append(float(env_ret.observation[0, 0]))
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            while not self.is_open:
                await asyncio.sleep(0.001)
            if env_ret.observation[0, 0] == 13:
                raise ZeroDivisionError("13 is not for us")
            assert torch.is_inference_mode_enabled()
            action = self.net(env_ret.observation)
            if not deterministic:
                action = action + torch.randn(action.shape, generator=self.generator)
            return PolicyResponse(action, extras={"by": self.name(len(action))})
        finally:
            self.inside -= 1

    def postprocess(self, env_ret=None, policy_resp=None):
        policy_resp.extras["finished_by"] = self.name(len(policy_resp.action))
        return policy_resp

    def name(self, rows):
        return np.repeat(np.array([[os.getpid(), id(self)]]), rows, axis=0)

    async def think(self):
        """A further coroutine of the author."""

    def let(self, is_open=True):
        self.is_open = is_open

    def get_began(self):
        return self.began

    def get_most(self):
        return self.most

    def is_updating(self):
        return bool(self._gate._updating)


class Alone(LinearPolicy):
    """A plain method, which would be wrong if two requests were in it at a time."""

    def rollout_step(self, env_ret, *, deterministic=False):
        assert not getattr(self, "is_busy", False)
        self.is_busy = True
        answer = super().rollout_step(env_ret, deterministic=deterministic)
        self.is_busy = False
        return answer


class Remembering(LinearPolicy):
    """Adds up what each env worker, known by the first number that it observes, has asked."""

    is_stateful = True

    def construct_network(self, env_meta, *args, **kwargs):
        super().construct_network(env_meta)
        self.asked = {}

    def rollout_step(self, env_ret, *, deterministic=False):
        for row in env_ret.observation:
            self.asked[float(row[0])] = self.asked.get(float(row[0]), 0) + 1
        return PolicyResponse(torch.tensor([[self.asked[float(row[0])]] * 2 for row in env_ret.observation]))

    def get_asked(self):
        return self.asked
