"""The metrics reference, made from the catalogue of ``rlightning.observability.metrics``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from config_reference import write_if_changed
from sphinx.application import Sphinx

from rlightning import registry
from rlightning.observability.metrics import Metric, catalogue


def render() -> str:
    """Write a table per group of metrics as Markdown."""
    for algorithm in registry.names("policy"):
        registry.lookup("policy", algorithm)  # describes its own metrics when it is imported
    return "\n".join(
        "\n".join([f"## `{group}/`\n", "| metric | unit | meaning |", "|---|---|---|", *map(_row, metrics), ""])
        for group, metrics in groupby(catalogue(), lambda metric: metric.name.partition("/")[0])
    )


def _row(metric: Metric) -> str:
    return f"| `{metric.name}` | {metric.unit or '-'} | {metric.meaning.replace('|', '&#124;')} |"


def _write(app: Sphinx) -> None:
    write_if_changed(Path(app.srcdir) / "_generated" / "metrics.md", render())


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the generation of this page before Sphinx reads any page."""
    app.connect("builder-inited", _write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
