"""Several training sets in one folder: ``train``, ``train1``, ``train2``, …"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from fairseq.data import ConcatDataset


def install() -> None:
    """Without ``--upsample-primary`` the first set counts once, as the others do. Stock multiplies it by the option's
    default, -1, and ends with "negative dimensions are not allowed"."""
    stock = ConcatDataset.__init__

    @functools.wraps(stock)
    def concatenate(self: Any, datasets: Any, sample_ratios: int | Sequence[float] = 1) -> None:
        if not isinstance(sample_ratios, int):
            sample_ratios = [1 if ratio == -1 else ratio for ratio in sample_ratios]
        stock(self, datasets, sample_ratios)

    ConcatDataset.__init__ = concatenate
