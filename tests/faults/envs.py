"""Envs that fail as simulators do, importable by worker processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from rlightning.registry import register
from tests.engine.envs import UnevenEnv


@register("simulator", "troubled")
class TroubledEnv(UnevenEnv):
    """Has a ``fault`` in step ``at`` (0 is the reset), each time; only once where ``once`` names a file to remember it.

    ``raise``: raises; ``hang``: sleeps for ever; ``exit``: ends the process; ``nan``: gives a reward that is none.
    """

    def __init__(self, config):
        options = dict(config.env_kwargs)
        self.fault, self.at, self.once = options.pop("fault", ""), options.pop("at", -1), options.pop("once", "")
        super().__init__(config.model_copy(update={"env_kwargs": options}))

    def reset(self, seed=None, options=None):
        ret = super().reset(seed)
        return self.trouble(0, ret)

    def step(self, response):
        ret = super().step(response)
        return self.trouble(self.steps, ret)

    def trouble(self, step, ret):
        if step != self.at or not self.fault:
            return ret
        if self.once:
            try:
                Path(self.once).touch(exist_ok=False)  # one of several processes, that is
            except FileExistsError:
                return ret
        if self.fault == "raise":
            raise OSError("the motor is off")
        if self.fault == "hang":
            time.sleep(1e6)
        if self.fault == "exit":
            os._exit(1)
        ret.reward = np.array(ret.reward, np.float32)
        ret.reward[1] = np.nan
        return ret


def pid(_worker):
    return os.getpid()
