"""Names in MuJoCo's models."""

from __future__ import annotations

from typing import Any


def actuator_names(model: Any, count: int) -> tuple[str, ...]:
    """Return the names of the actuators of a model; empty if they are not ``count``, or one has no name."""
    if getattr(model, "nu", None) != count:
        return ()
    names = tuple(str(model.actuator(index).name) for index in range(count))
    return names if all(names) else ()
