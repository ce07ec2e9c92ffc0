"""``TensorDict``, imported without torch's compiler.

When tensordict is imported, it marks a few of its functions for torch's compiler, and the first mark loads the
compiler. That takes as long as loading torch, in every process that learns, and few runs compile anything. So the marks
are stored here, and ``tell_compiler`` sets them.
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
"""Marks and their functions, in order; None once the compiler has them."""


def tell_compiler() -> None:
    """Set the marks of tensordict's functions; to be called before the compiler is used."""
    global _untold
    said, _untold = _untold or [], None
    for tell, function in said:
        tell(function)


def _keep(tell: Callable[[Any], Any], function: Any) -> Any:
    # Both marks are attributes of the function, which is returned as it is: they may be set at any time.
    if _untold is None:
        return tell(function)
    _untold.append((tell, function))
    return function


@contextmanager
def _compiler_left_alone() -> Iterator[None]:
    """Store marks for the compiler, unless it is loaded already."""
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
