"""Statistics of a few runs or episodes: the interquartile mean, and intervals by bootstrap.

Both follow Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical precipice".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

_RESAMPLES = 5000
_CONFIDENCE = 0.95
FEWEST = 5
"""Values below which such an interval is far too narrow: of two it holds the truth in 53 % of the cases, of three in
73 %, of five in 89 %, of ten in 95 % (the interquartile mean of normal values, 400 draws)."""


def interquartile_mean(values: Sequence[float] | Array, axis: int = -1) -> Array:
    """Mean without the lowest and the highest quarter of the values (Agarwal et al. 2021, section 4.3).

    Of n values, the whole part of n / 4 is left out on each side.

    >>> float(interquartile_mean([0.0, 1.0, 3.0, 100.0]))
    2.0
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=axis)
    count = ordered.shape[axis]
    kept = np.take(ordered, range(count // 4, count - count // 4), axis=axis)
    return np.asarray(kept.mean(axis=axis))


def bootstrap_interval(
    values: Sequence[float], statistic: Callable[..., Array] = interquartile_mean, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of a statistic by the percentile bootstrap with 5,000 resamples (Efron 1979).

    Args:
        values: Independent values, such as the final returns of runs with different seeds.
        statistic: Reduces an axis of an array, as ``np.mean`` does.
        seed: Seed of the resampling.

    Returns:
        Its lower and upper end; NaN for fewer than ``FEWEST`` values.
    """
    if len(values) < FEWEST:
        return float("nan"), float("nan")
    drawn = _resample(np.asarray(values, np.float64), np.random.default_rng(seed))
    return _middle(statistic(drawn, axis=-1))


def bootstrap_difference(
    first: Sequence[float],
    second: Sequence[float],
    statistic: Callable[..., Array] = interquartile_mean,
    seed: int = 0,
) -> tuple[float, float]:
    """95 % interval of the difference of a statistic, first minus second, of two independent samples.

    Returns:
        Its lower and upper end; NaN if a sample has fewer than ``FEWEST`` values.
    """
    if min(len(first), len(second)) < FEWEST:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    one, two = (statistic(_resample(np.asarray(values, np.float64), generator), axis=-1) for values in (first, second))
    return _middle(one - two)


def _resample(values: Array, generator: np.random.Generator) -> Array:
    return values[generator.integers(len(values), size=(_RESAMPLES, len(values)))]


def _middle(values: Array) -> tuple[float, float]:
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
