"""Series in the format of ETT (Zhou et al. 2021): a CSV with ``date`` and a column for each variable, the target last.

The first 12 months of 30 days are for training, the next 4 for validation and 4 for the test, as in Informer; rows
after them are not used. Every variable is standardised by mean and deviation of the training part.
"""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Months of 30 days of each part, in the order of time.
PARTS = {"train": 12, "valid": 4, "test": 4}
#: Features of a time stamp, see ``time_features``.
STAMPS = 5
FEATURES = ("multivariate", "univariate")


@dataclass(frozen=True)
class Series:
    """Variables at equal distances in time.

    Attributes:
        name: of the data set.
        columns: names of the C variables; the last one is the target.
        dates: n.
        values: (n, C).
        sha256: a checksum that tells it from others of its name; the first 16 hexadecimal digits.
    """

    name: str
    columns: tuple[str, ...]
    dates: list[datetime]
    values: NDArray[np.float64]
    sha256: str

    @property
    def minutes(self) -> int:
        """From one row to the next."""
        return (self.dates[1] - self.dates[0]) // timedelta(minutes=1)

    @property
    def rows_per_day(self) -> int:
        return 24 * 60 // self.minutes

    @cached_property
    def stamps(self) -> Tensor:
        """Features of the dates, (n, STAMPS)."""
        return torch.from_numpy(time_features(self.dates)).float()


@dataclass(frozen=True)
class Windows:
    """All windows of a part: inputs of L rows and the H rows that follow them, which are to be predicted.

    Attributes:
        values: standardised, (n, C).
        stamps: features of the rows' dates, (n, STAMPS).
        input_length: L.
        horizon: H.
    """

    values: Tensor
    stamps: Tensor
    input_length: int
    horizon: int

    def __len__(self) -> int:
        return max(len(self.values) - self.input_length - self.horizon + 1, 0)

    def batch(self, starts: Tensor, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
        """The windows that begin at the rows ``starts`` (B,): inputs (B, L, C), stamps of inputs and horizon
        (B, L + H, STAMPS), targets (B, H, C)."""
        rows = starts.unsqueeze(1) + torch.arange(self.input_length + self.horizon)
        values = self.values[rows].to(device)
        return values[:, : self.input_length], self.stamps[rows].to(device), values[:, self.input_length :]


def read_csv(path: Path) -> Series:
    """The series of a file.

    Raises:
        ValueError: naming the line that is wrong.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        if header[:1] != ["date"] or len(header) < 2:
            raise ValueError(
                f"{path}: the first line must be date and the names of variables, not {','.join(header)!r}"
            )
        dates: list[datetime] = []
        rows: list[list[float]] = []
        for line in filter(None, lines):
            try:
                dates.append(datetime.fromisoformat(line[0]))
                if dates[-1].tzinfo is not None:
                    raise ValueError(f"{line[0]} has a time zone, which ETT's dates do not have")
                rows.append([float(field) for field in line[1:]])
                if len(rows[-1]) != len(header) - 1 or not np.isfinite(rows[-1]).all():
                    raise ValueError(f"{len(header) - 1} finite numbers are needed after the date")
                if len(dates) > 2 and dates[-1] - dates[-2] != dates[1] - dates[0]:
                    raise ValueError(f"{line[0]} is not {dates[1] - dates[0]} after the line before")
            except ValueError as error:
                raise ValueError(f"{path}, line {lines.line_num}: {error}") from None
    distance = dates[1] - dates[0] if len(dates) > 1 else timedelta(0)
    if distance <= timedelta(0) or distance % timedelta(minutes=1) or timedelta(days=1) % distance:
        raise ValueError(f"{path}: rows must follow each other at a distance in minutes that divides a day")
    checksum = hashlib.sha256(repr((header, dates, rows)).encode()).hexdigest()[:16]
    return Series(path.stem, tuple(header[1:]), dates, np.array(rows), checksum)


def parts(series: Series, features: str, input_length: int, horizon: int) -> dict[str, Windows]:
    """The windows of training, validation and test.

    The inputs of the first windows of validation and test reach back into the part before, so that every row of these
    parts is predicted.

    Args:
        features: ``multivariate``: all variables from all, ``univariate``: the target from itself.
        input_length: L, in rows.
        horizon: H, in rows.

    Raises:
        ValueError: if the series or one of its parts is too short.
    """
    rows = [months * 30 * series.rows_per_day for months in PARTS.values()]
    if len(series.values) < sum(rows):
        raise ValueError(
            f"{series.name} has {len(series.values)} rows; 12 + 4 + 4 months of 30 days are {sum(rows)} "
            f"({series.rows_per_day} a day)"
        )
    chosen = series.values if features == "multivariate" else series.values[:, -1:]
    values = torch.from_numpy(standardised(chosen, rows[0])).float()
    windows: dict[str, Windows] = {}
    begin = 0
    for part, count in zip(PARTS, rows, strict=True):
        here = slice(max(begin - input_length, 0), begin + count)
        windows[part] = Windows(values[here], series.stamps[here], input_length, horizon)
        if len(windows[part]) < 1:
            raise ValueError(
                f"--input-length {input_length} and --horizon {horizon} are too long for the {part} part of "
                f"{series.name}, which has {count} rows"
            )
        begin += count
    return windows


def standardised(values: NDArray[np.float64], training_rows: int) -> NDArray[np.float64]:
    """Variables (n, C) with mean 0 and standard deviation 1 in the first rows; those that are constant there are only
    shifted."""
    deviation = values[:training_rows].std(axis=0)
    return (values - values[:training_rows].mean(axis=0)) / np.where(deviation == 0, 1, deviation)


def time_features(dates: list[datetime]) -> NDArray[np.float64]:
    """Minute, hour, day of the week, of the month and of the year, each from -0.5 to 0.5: (n, STAMPS)."""
    rows = [
        (d.minute / 59, d.hour / 23, d.weekday() / 6, (d.day - 1) / 30, (d.timetuple().tm_yday - 1) / 365)
        for d in dates
    ]
    return np.array(rows) - 0.5
