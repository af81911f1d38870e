"""Results beside Table 2 of the AMLP paper, and as in its Figure 3."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from amlp_fairseq.training.results import in_columns

#: The option for c, which is the last of a training where several are tried.
INNER_DIM = "--attention-inner-dim"
#: Scales, rows and published numbers.
TABLE = yaml.safe_load(Path(__file__).with_name("table2.yaml").read_text(encoding="utf-8"))


def comparison(lines: list[dict[str, Any]]) -> str:
    """MCD and MSD of each row, averaged over seeds, followed by the paper's."""
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


def by_inner_dim(lines: list[dict[str, Any]]) -> str:
    """MCD and speed of each row over c, averaged over seeds, as in Figure 3, whose numbers are not in its text."""
    columns = ["row", "c", "parameters", "MCD", "MSD", "frames/s"]
    rows = []
    for row, c in dict.fromkeys((line["row"], _inner_dim(line)) for line in lines):
        same = [line for line in lines if (line["row"], _inner_dim(line)) == (row, c)]
        scores = [f"{mean(same, name):.3f}" for name in ("mcd", "msd")]
        rows.append([row, c, f"{same[0]['parameters'] / 1e6:.2f}M", *scores, f"{mean(same, 'frames_per_second'):.0f}"])
    return in_columns(columns, rows)


def _inner_dim(line: dict[str, Any]) -> str:
    """The c that a row was trained with, empty if it has none."""
    return str(line["options"][-1]) if INNER_DIM in line["options"] else ""


def mean(lines: list[dict[str, Any]], name: str) -> float:
    return fmean(line[name] for line in lines)


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"
