"""Functions that torch compiles when they are first called."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from rlightning.device import replays_graphs
from rlightning.observability.timer import Timer

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def compile_at_first_call(function: Callable[P, R], device: str, timer: Timer) -> Callable[P, R]:
    """Wrap a function so that torch compiles it; the first call is timed as ``compile``, and logged.

    Args:
        function: What is called many times.
        device: Where it computes; on a GPU its calls are replayed as graphs.
        timer: Gets the time of the first call.
    """
    # Here, since most policies need no tensordict.
    from rlightning.types.tensordict import tell_compiler

    tell_compiler()
    if replays_graphs(device):
        compiled = torch.compile(function, mode="reduce-overhead")
    else:
        # tanh(x) as 2 / (1 + exp(-2x)) - 1, off by 2e-7 at most: torch's own takes most of the time of a small network.
        compiled = torch.compile(function, options={"cpp.use_decompose_tanh": True})
    is_new = True

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal is_new
        if not is_new:
            return compiled(*args, **kwargs)
        is_new = False
        start = time.perf_counter()
        with timer.measure("compile"):
            result = compiled(*args, **kwargs)
        logger.info("compiled %s in %.1f s", function.__qualname__, time.perf_counter() - start)
        return result

    return call
