"""``TensorDict``, imported without torch's compiler.

While tensordict is imported it tells torch's compiler how to treat a few of its functions, and the first word to the
compiler loads all of it. That takes as long as loading torch, in every process that learns, and few runs compile
anything. So what it says is kept here, and ``tell_compiler`` passes it on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["TensorDict", "tell_compiler"]

_untold: list[tuple[Callable[[Any], Any], Any]] | None = []
"""What was said of which function, in order; None once the compiler was told."""


def tell_compiler() -> None:
    """Let torch's compiler know what tensordict says of its functions; for whoever compiles."""
    global _untold
    said, _untold = _untold or [], None
    for tell, function in said:
        tell(function)


def _keep(tell: Callable[[Any], Any], function: Any) -> Any:
    # Both marks are left on the function itself, which comes back as it is: it does not matter when that is done.
    if _untold is None:
        return tell(function)
    _untold.append((tell, function))
    return function


@contextmanager
def _compiler_left_alone() -> Iterator[None]:
    """Keep what is said to the compiler, unless it is there already."""
    marks = {name: getattr(torch.compiler, name) for name in ("allow_in_graph", "assume_constant_result")}
    if "torch._dynamo" not in sys.modules:
        for name, tell in marks.items():
            setattr(torch.compiler, name, functools.partial(_keep, tell))
    try:
        yield
    finally:
        for name, tell in marks.items():
            setattr(torch.compiler, name, tell)


with _compiler_left_alone():
    from tensordict import TensorDict
