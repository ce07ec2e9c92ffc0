"""How long things take, cheaply enough for the hot path."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType


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
        self.seconds += perf_counter() - self.starts.pop()
        self.count += 1


class _Stopwatches(dict[str, _Stopwatch]):
    def __missing__(self, name: str) -> _Stopwatch:
        stopwatch = self[name] = _Stopwatch()
        return stopwatch


class Timer:
    """Adds up wall-clock seconds by name.

    >>> timer = Timer()
    >>> with timer.measure("rollout"):
    ...     pass
    >>> timer.summary()["rollout"]["count"]
    1
    """

    __slots__ = ("_stopwatches",)

    def __init__(self) -> None:
        self._stopwatches = _Stopwatches()

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
        """Lay out the summary as text, the largest total first."""
        rows = sorted(self.summary().items(), key=lambda row: -row[1]["total"])
        width = max([len("name"), *(len(name) for name, _ in rows)])
        lines = [title] if title else []
        lines.append(f"{'name':<{width}} {'count':>9} {'total s':>11} {'average ms':>11}")
        for name, row in rows:
            count, total, average = int(row["count"]), row["total"], row["average"] * 1e3
            lines.append(f"{name:<{width}} {count:>9d} {total:>11.3f} {average:>11.4f}")
        return "\n".join(lines)

    def reset(self) -> None:
        """Start counting anew."""
        self._stopwatches.clear()
