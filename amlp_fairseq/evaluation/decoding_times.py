"""Speeds in a result of benchmarks/decoding.py.

A speed-up is the median over sentences (or batches) of the baseline's time for the sentence over the system's own, so
that a sentence that was disturbed does not count more than another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]


def setting_name(row: Row) -> str:
    """A system, its precision and its decoding, as baselines are named."""
    return " ".join(row[name] for name in ("system", "precision", "decoding"))


class SpeedUp(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.low:.2f}-{self.high:.2f})"


def speed_up(row: Row, base: Row) -> SpeedUp:
    """Speed of a row over one of the same sentences."""
    ratios = [slow / fast for slow, fast in zip(base["ms"], row["ms"], strict=True)]
    low, median, high = np.percentile(ratios, [25, 50, 75]).tolist()
    return SpeedUp(median, low, high)


def add_speedups(rows: Sequence[Row], baseline: str) -> None:
    """Give each row its speed-up over the baseline at the same batch size."""
    base = {row["batch"]: row for row in rows if setting_name(row) == baseline}
    for row in rows:
        row["speedup"], *row["speedup_quartiles"] = speed_up(row, base[row["batch"]])


def ended_early(result: dict[str, Any]) -> str:
    """A sentence on a file of benchmarks/decoding.py whose program ended early, with what it lacks; else nothing."""
    if result.get("complete", True):
        return ""
    total, measured = len(result["lengths"]), {row["batch"]: row["sentences"] for row in result["decoding"]}
    short = {size: n for size, n in measured.items() if n < total}
    parts = [f"only the shortest {n} of {total} sentences at batch size {size}" for size, n in short.items()]
    return f"The run ended early: {', '.join(parts) or 'these batch sizes are whole'}"
