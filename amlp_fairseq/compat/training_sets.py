"""Several training sets in one folder: ``train``, ``train1``, ``train2``, …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def count_once(stock: Any, self: Any, datasets: Any, sample_ratios: int | Sequence[float] = 1) -> None:
    """Without ``--upsample-primary`` let the first set count once, as the others do. Stock multiplies it by the
    option's default, -1, and ends with "negative dimensions are not allowed"."""
    if not isinstance(sample_ratios, int):
        sample_ratios = [1 if ratio == -1 else ratio for ratio in sample_ratios]
    stock(self, datasets, sample_ratios)
