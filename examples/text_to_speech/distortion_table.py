"""Results beside Table 2 of the AMLP paper."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from amlp_fairseq.recipes.results import in_columns

#: Scales, rows and published numbers.
TABLE = yaml.safe_load(Path(__file__).with_name("table2.yaml").read_text(encoding="utf-8"))


def comparison(lines: list[dict[str, Any]]) -> str:
    """MCD and MSD of each row, averaged over seeds, and behind them the paper's."""
    columns = ["row", "parameters", "MCD", "MSD", "length", "paper", "parameters", "MCD", "MSD"]
    baseline = [f"{mean(lines, name):.3f}" for name in ("mean_frame_mcd", "mean_frame_msd")]
    rows = [["mean frame repeated", "", *baseline, "", "", "", "", ""]]
    for row in dict.fromkeys(line["row"] for line in lines):
        of_row = [line for line in lines if line["row"] == row]
        scores = [f"{mean(of_row, name):.3f}" for name in ("mcd", "msd")]
        size = f"{of_row[0]['parameters'] / 1e6:.2f}M"
        theirs = map(_shown, TABLE["rows"][row].get("published", [""] * 4))
        rows.append([row, size, *scores, f"{mean(of_row, 'length'):.2f}", *theirs])
    return in_columns(columns, rows)


def mean(lines: list[dict[str, Any]], name: str) -> float:
    return fmean(line[name] for line in lines)


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"
