"""Who belongs to whom: blocks of neighbours, so that the order of all is kept."""

from __future__ import annotations

from itertools import pairwise


def blocks(count: int, parts: int) -> list[range]:
    """Cut the numbers from 0 to ``count`` into blocks of nearly equal length, the longer ones first.

    Env workers belong to shards in this way, and so do train policies: what lies side by side in the data of a single
    shard for a single train policy lies in the same order in those of many.

    Args:
        count: How many there are.
        parts: How many blocks.

    >>> blocks(5, 2)
    [range(0, 3), range(3, 5)]
    """
    short, longer = divmod(count, parts)
    starts = [place * short + min(place, longer) for place in range(parts + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]
