"""Names in MuJoCo's models."""

from __future__ import annotations

from typing import Any


def actuator_names(model: Any, shape: tuple[int, ...] | None) -> tuple[str, ...]:
    """Return the names of the actuators of a model; empty if one has none, or actions of ``shape`` are not [nu]."""
    count = getattr(model, "nu", None)
    if count is None or shape != (count,):
        return ()
    names = tuple(str(model.actuator(index).name) for index in range(count))
    return names if all(names) else ()
