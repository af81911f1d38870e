"""Bars of progress, and lines of it in logs."""

from __future__ import annotations

import io
import sys
from typing import Any

from tqdm import tqdm

#: Seconds after which there is a line in the log, however few batches have been done.
SILENCE = 60.0


def counter(visible: bool, **options: Any) -> tqdm[Any]:
    """A bar of tqdm; one that is not visible only counts. Its speed is the mean since its beginning."""
    file = sys.stderr if visible else io.StringIO()
    return tqdm(smoothing=0, dynamic_ncols=True, leave=False, file=file, **options)


def pace(bar: tqdm[Any], unit: str) -> list[str]:
    """Progress, speed and the time left, as parts of a line."""
    state = bar.format_dict
    done, total = state["n"], state["total"]
    rate = (done - state["initial"]) / max(state["elapsed"], 1e-9)
    parts = [f"{done} of {total} {unit}" if total else f"{done} {unit}", f"{rate:.2f} {unit}/s"]
    if total and rate:
        parts.append(f"{tqdm.format_interval(max(0, total - done) / rate)} left")
    return parts
