"""The spans of all workers as a file for Perfetto and ``chrome://tracing``: one lane per worker."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlightning.errors import RecordError
from rlightning.observability.timer import Span

KINDS = {
    "collect": "collect",
    "reset": "collect",
    "step": "collect",
    "store": "collect",
    "evaluate": "evaluate",
    "rollout": "infer",
    "postprocess": "infer",
    "export": "transfer",
    "import": "transfer",
    "sample": "transfer",
    "offload": "transfer",
    "reload": "transfer",
    "learn": "train",
    "train": "train",
    "update_dataset": "train",
    "publish": "push",
    "wait": "wait",
}
"""Name of a measurement -> kind of work; all others are of the kind "other"."""

_BEGIN = b"[\n"
_BETWEEN = b",\n"
_END = b"\n]\n"


class TraceFile:
    """A JSON array of events, in the Trace Event Format of Chrome; it is complete after every ``append``.

    Times are microseconds since the file was made, by the wall clock. A run that is resumed continues the same file. A
    process that is killed during an ``append`` leaves a file that ends within those events; opening it repairs it.
    """

    def __init__(self, path: Path) -> None:
        """Make the file, or continue an existing one."""
        self._path = path
        self._lanes: dict[str, int] = {}
        self._threads: dict[int, dict[int, int]] = {}
        if path.exists() and _repair(path):
            with path.open(encoding="utf-8") as file:
                file.readline()
                first = json.loads(file.readline().rstrip(",\n"))
        else:
            first = {"ph": "M", "name": "origin", "pid": 0, "args": {"wall_time_s": time.time()}}
            path.write_bytes(_BEGIN + json.dumps(first).encode() + _END)
        self._origin_s: float = first["args"]["wall_time_s"]

    def append(self, lanes: Mapping[str, Sequence[Span]]) -> None:
        """Write spans of workers.

        Args:
            lanes: Spans by the name of the worker.
        """
        events: list[dict[str, Any]] = []
        for worker, spans in lanes.items():
            if worker not in self._lanes:
                lane = self._lanes[worker] = len(self._lanes)
                events.append({"ph": "M", "name": "process_name", "pid": lane, "args": {"name": worker}})
                events.append({"ph": "M", "name": "process_sort_index", "pid": lane, "args": {"sort_index": lane}})
            events += [self._event(self._lanes[worker], span) for span in spans]
        if events:
            self._write(events)

    def _event(self, lane: int, span: Span) -> dict[str, Any]:
        threads = self._threads.setdefault(lane, {})
        thread = threads.setdefault(span.thread, len(threads))
        # Nanoseconds: rounding keeps the order of all times, and so the nesting of spans.
        start, end = (round((at_s - self._origin_s) * 1e6, 3) for at_s in (span.start_s, span.end_s))
        times = {"ts": start, "dur": round(end - start, 3)}
        return {"ph": "X", "name": span.name, "cat": KINDS.get(span.name, "other"), "pid": lane, "tid": thread, **times}

    def _write(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Write events over the end of the array."""
        text = b"".join(_BETWEEN + json.dumps(event).encode() for event in events) + _END
        try:
            with self._path.open("r+b") as file:
                file.seek(-len(_END), os.SEEK_END)
                file.write(text)
        except OSError as error:
            raise RecordError(f"{self._path} cannot be written: {error.strerror or error}") from error


def _repair(path: Path) -> bool:
    """Remove an incomplete event and close the array; return whether any event is left."""
    written = path.read_bytes()
    if written.startswith(_BEGIN + b"{") and written.endswith(b"}" + _END):
        return True
    # Events contain no line breaks, so all before a line break is complete.
    end = written.rfind(b"}" + _BETWEEN) + 1
    if end:
        os.truncate(path, end)
        with path.open("ab") as file:
            file.write(_END)
    return end > 0
