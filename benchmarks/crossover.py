"""The length from which on one system takes no more than another."""

from __future__ import annotations

import math
from collections.abc import Mapping


def crossover(ours: Mapping[int, float], other: Mapping[int, float]) -> float | str | None:
    """The length from which on ours is at most the other, given values by length.

    Returns:
        "always" if it is at every common length, "never" if not at the longest, None if there is no common length.
    """
    lengths = sorted(ours.keys() & other.keys())
    if not lengths:
        return None
    gaps = [math.log(ours[n] / other[n]) for n in lengths]
    above = [i for i, gap in enumerate(gaps) if gap > 0]
    if not above:
        return "always"
    i = above[-1]
    if i == len(lengths) - 1:
        return "never"
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return math.exp((1 - share) * math.log(lengths[i]) + share * math.log(lengths[i + 1]))


def crossover_text(point: float | str) -> str:
    return point if isinstance(point, str) else f"{point:.0f}"
