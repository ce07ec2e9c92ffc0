"""Measurements of time that are cheap enough for the hot path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter, time
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Span:
    """One measurement.

    Attributes:
        name: Name of the measurement.
        start_s: Its start, in seconds since 1970.
        end_s: Its end likewise; spans of one timer are measured by a monotonic clock.
        thread: Number of the thread.
    """

    name: str
    start_s: float
    end_s: float
    thread: int


class _Stopwatch:
    """Adds up the measurements of one name.

    Starts are kept on a stack, so that measurements may nest and overlap: whichever start an end is paired with, the
    sum of the ends minus the sum of the starts is the same.
    """

    __slots__ = ("count", "seconds", "starts")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0
        self.starts: list[float] = []

    def __enter__(self) -> None:
        self.starts.append(perf_counter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        took = perf_counter() - self.starts.pop()
        # Without a call between reading and writing the sum, no other thread runs in between.
        self.seconds += took
        self.count += 1


class _SpanStopwatch(_Stopwatch):
    """Records each measurement as a span as well; those of one thread nest."""

    __slots__ = ("name", "offset_s", "own", "spans")

    def __init__(self, name: str, spans: list[Span], offset_s: float) -> None:
        super().__init__()
        self.name, self.spans, self.offset_s = name, spans, offset_s
        self.own: dict[int, list[float]] = {}

    def __enter__(self) -> None:
        self.own.setdefault(get_ident(), []).append(perf_counter())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end, thread = perf_counter(), get_ident()
        start = self.own[thread].pop()
        took = end - start
        self.seconds += took
        self.count += 1
        self.spans.append(Span(self.name, start + self.offset_s, end + self.offset_s, thread))


class _Stopwatches(dict[str, _Stopwatch]):
    def __missing__(self, name: str) -> _Stopwatch:
        stopwatch = self[name] = _Stopwatch()
        return stopwatch


class _SpanStopwatches(_Stopwatches):
    def __init__(self, spans: list[Span]) -> None:
        self._spans, self._offset_s = spans, time() - perf_counter()

    def __missing__(self, name: str) -> _Stopwatch:
        stopwatch = self[name] = _SpanStopwatch(name, self._spans, self._offset_s)
        return stopwatch


class Timer:
    """Adds up wall-clock seconds by name.

    >>> timer = Timer()
    >>> with timer.measure("rollout"):
    ...     pass
    >>> timer.summary()["rollout"]["count"]
    1
    """

    __slots__ = ("_spans", "_stopwatches")

    def __init__(self) -> None:
        self._stopwatches = _Stopwatches()
        self._spans: list[Span] = []

    def measure(self, name: str) -> _Stopwatch:
        """Return a context manager that adds the time spent in it to ``name``."""
        return self._stopwatches[name]

    def total_s(self, name: str) -> float:
        """Return the total seconds of a name; 0 where it was never measured."""
        return self._stopwatches[name].seconds if name in self._stopwatches else 0.0

    def summary(self) -> dict[str, dict[str, float]]:
        """Return count, total and average (both in seconds) by name."""
        return {
            name: {"count": watch.count, "total": watch.seconds, "average": watch.seconds / max(watch.count, 1)}
            for name, watch in self._stopwatches.items()
        }

    def table(self, title: str = "") -> str:
        """Format the summary as text, the largest total first."""
        return timing_table({title: self.summary()})

    def reset(self) -> None:
        """Forget all measurements."""
        self._stopwatches.clear()

    def record_spans(self) -> None:
        """Forget all measurements, and record a span of each one from now on."""
        self._stopwatches = _SpanStopwatches(self._spans)

    def take_spans(self) -> list[Span]:
        """Return the spans that were recorded since the last call, in the order of their ends."""
        count = len(self._spans)
        taken = self._spans[:count]
        del self._spans[:count]
        return taken


def timing_table(workers: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Format the summaries of several timers as text, worker by worker, the largest total first.

    Args:
        workers: Name of a worker -> its ``Timer.summary``.
    """
    rows = [("worker", "name", "count", "total s", "average ms")]
    for worker, summary in workers.items():
        for name, row in sorted(summary.items(), key=lambda row: -row[1]["total"]):
            rows.append((worker, name, f"{row['count']:.0f}", f"{row['total']:.3f}", f"{row['average'] * 1e3:.4f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}"
        + "".join(f"  {text:>{width}}" for text, width in zip(row[2:], widths[2:], strict=True))
        for row in rows
    )
