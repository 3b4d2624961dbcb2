"""How long it took from a message to the publication of what it announced: counts in fixed buckets, and percentiles.

Each bucket ends 20 % later than the one before it, from 10 ms to more than a month. So a histogram has some hundred
numbers at most, whatever is counted; two are joined by adding them; and a percentile is at most a tenth wrong.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

FIRST = 10_000.0
"""Microseconds: all that is shorter counts as this."""
GROWTH = 1.2
BOUNDS = tuple(FIRST * GROWTH**place for place in range(109))
"""The ends of the buckets, in microseconds; what is longer than the last one is in a bucket without an end."""

Lags = Mapping[int, int]
"""How many lags are in which bucket."""


def histogram(lags: Iterable[int]) -> Counter[int]:
    """Of lags in microseconds; those below 0 (clocks that disagree) count as the shortest."""
    ordered = sorted(lags)
    found: Counter[int] = Counter()
    before = 0
    while before < len(ordered):  # each turn fills a bucket: there are fewer of them than lags
        place = bisect_left(BOUNDS, ordered[before])
        after = bisect_right(ordered, BOUNDS[place], before) if place < len(BOUNDS) else len(ordered)
        found[place] = after - before
        before = after
    return found


def percentile(lags: Lags, part: float) -> int | None:
    """The lag (microseconds) that so much of all (0.5: half) are not longer than, about; None: there are none."""
    wanted = part * sum(lags.values())
    seen = 0
    for place in sorted(lags):
        seen += lags[place]
        if seen >= wanted:
            return _middle(place)
    return None


def _middle(place: int) -> int:
    if place == 0:
        return round(BOUNDS[0])
    return round(BOUNDS[min(place, len(BOUNDS) - 1)] / math.sqrt(GROWTH))
