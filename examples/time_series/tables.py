"""Results as tables: each setting, and beside Table 5 of the AMLP paper."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from amlp_fairseq.training.results import in_columns

#: Scales, horizons and published numbers.
TABLE = yaml.safe_load(Path(__file__).with_name("table5.yaml").read_text(encoding="utf-8"))
#: The cross-attentions of the paper's rows.
PUBLISHED = [name for row in TABLE["published"] for name in row["attentions"]]
#: What the paper has numbers for.
COLUMNS = ("ETTh1", "ETTh2", "ETTm1", "Avg.")

Lines = list[dict[str, Any]]


def details(lines: Lines) -> str:
    """MSE / MAE of each cross-attention in each setting, averaged over seeds."""
    settings = grouped(lines, "data", "features", "horizon")
    rows = []
    for name, of_name in grouped(lines, "cross_attention").items():
        by_setting = grouped(of_name, "data", "features", "horizon")
        cells = [[fmean(line[kind] for line in by_setting[setting]) for kind in ("mse", "mae")] for setting in settings]
        rows.append([*name, *(both(*cell) for cell in cells)])
    return in_columns(["MSE / MAE", *(", ".join(map(str, setting)) for setting in settings)], rows)


def comparison(lines: Lines) -> str:
    """MSE / MAE of each cross-attention, averaged over features, horizons and seeds, followed by the paper's."""
    sets = [name for (name,) in grouped(lines, "data")]
    averages = [*sets, *["Avg."] * (len(sets) > 1)]
    columns = ["cross-attention", "parameters", *averages, "paper", "parameters", *COLUMNS]
    rows = [["last day repeated", "", *errors(lines, "repeated_day_"), *[""] * (2 + len(COLUMNS))]]
    for (name,), of_name in grouped(lines, "cross_attention").items():
        size = max(line["parameters"] for line in of_name)
        row = next((row for row in TABLE["published"] if name in row["attentions"]), None)
        theirs = [""] * (2 + len(COLUMNS))
        if row is not None:
            theirs = [row["row"], row["parameters"], *(both(*row[column]) for column in COLUMNS)]
        rows.append([name, f"{size / 1e6:.2f}M", *errors(of_name), *theirs])
    return in_columns(columns, rows)


def errors(lines: Lines, prefix: str = "") -> list[str]:
    """MSE / MAE of each data set, and of several their mean."""
    means = [
        [fmean(line[prefix + kind] for line in of_set) for kind in ("mse", "mae")]
        for of_set in grouped(lines, "data").values()
    ]
    if len(means) > 1:
        means.append([fmean(values) for values in zip(*means, strict=True)])
    return [both(*pair) for pair in means]


def both(mse: float, mae: float) -> str:
    return f"{mse:.3f} / {mae:.3f}"


def grouped(lines: Lines, *keys: str) -> dict[tuple[Any, ...], Lines]:
    """The lines by the values of some keys."""
    groups: dict[tuple[Any, ...], Lines] = {}
    for line in lines:
        groups.setdefault(tuple(line[key] for key in keys), []).append(line)
    return groups
