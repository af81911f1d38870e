"""A synthetic series in the place of ETT: hourly, 20 months, with ETT's columns."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

import numpy as np
from ett import PARTS, Series

COLUMNS = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")


def seasons(seed: int = 1) -> Series:
    """Six loads with periods of a day, half a day, a week and about 37 hours, a trend and noise; and OT, which follows
    the mean load of the last 12 hours with a trend and noise of its own.

    The phase of the 37 hours drifts: unlike the others it cannot be told from the date, only from the inputs. Values
    have three decimals, as in ETT, so that a seed gives the same series everywhere.
    """
    rng = np.random.default_rng(seed)
    hours = np.arange(sum(PARTS.values()) * 30 * 24)
    drifting = np.cumsum(1 / 37 + 0.002 * rng.standard_normal(len(hours)))
    loads = []
    for _ in COLUMNS[:-1]:
        cycles = (hours / 24, hours / 12, hours / 168, drifting)
        phases, amplitudes = rng.random(len(cycles)), (1.0, 0.4, 0.5, 0.8) * rng.uniform(0.5, 1.5, len(cycles))
        load = rng.uniform(-0.5, 0.5) * hours / len(hours) + 0.3 * rng.standard_normal(len(hours))
        for cycle, phase, amplitude in zip(cycles, phases, amplitudes, strict=True):
            load += amplitude * np.sin(2 * np.pi * (cycle + phase))
        loads.append(10 + 5 * load)
    mean = np.convolve(np.mean(loads, axis=0), np.full(12, 1 / 12))[: len(hours)]
    mean[:11] = mean[11]
    oil = 20 + 2 * (mean - 10) + hours / len(hours) + 0.5 * rng.standard_normal(len(hours))
    dates = [datetime(2016, 7, 1) + timedelta(hours=int(hour)) for hour in hours]
    values = np.stack([*loads, oil], axis=1).round(3)
    return Series("synthetic", COLUMNS, dates, values, hashlib.sha256(values.tobytes()).hexdigest()[:16])
