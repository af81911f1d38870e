"""The numbers of benchmarks/efficiency.py in Markdown."""

from __future__ import annotations

from typing import Any

from amlp_fairseq.evaluation.decoding_times import Row
from benchmarks.tables import Column, fields, table

LATENCY, THROUGHPUT = "latency", "throughput"
#: What translations depend on.
FACTS = ("system", "model", "precision", "decoding")


def translation_key(row: Row) -> tuple[str, ...]:
    """The fields of a row that its translations depend on."""
    return tuple(row[name] for name in FACTS)


def fastest(rows: list[Row]) -> list[Row]:
    """Of each configuration the row with the batch and the number of workers that is fastest."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        if row["mode"] == THROUGHPUT:
            key = translation_key(row)
            best[key] = max(row, best.get(key, row), key=lambda row: row["lines_per_second"])
    return list(best.values())


def tables(result: dict[str, Any]) -> str:
    """All tables, and what was skipped or failed."""
    first: list[Column] = [*fields(FACTS), ("CPUs", "cores")]
    last: list[Column] = [
        ("peak MiB", "peak_mib"), ("MiB on disk", "size_mib"), ("BLEU", bleu),
        ("chrF", lambda row: f"{row['chrf']:.2f}" if "chrf" in row else None),
        ("disturbed", lambda row: "; ".join(row["disturbed"]) or "no"),
    ]  # fmt: skip
    slow: list[Column] = [
        ("ms a line (quartiles)", quartiles), ("95 %", "ms_95"), ("ms a line, whole process", "ms_per_line"),
        ("ms a line, less a one-line run", "ms_per_line_less_one_line"),
    ]  # fmt: skip
    fast: list[Column] = [
        ("pieces x batches", lambda row: f"{row['batch_tokens']} x {row['workers']}"),
        ("lines/s, whole process", "lines_per_second"),
        ("lines/s, less a one-line run", "lines_per_second_less_one_line"),
    ]
    latency = [row for row in result["rows"] if row["mode"] == LATENCY]
    parts = [f"Latency, {result['lines']} lines, one at a time:", table(latency, [*first, *slow, *last])]
    if throughput := fastest(result["rows"]):
        lines = result["lines"] * result["options"].get("copies", 1)
        parts += [f"Throughput, {lines} lines at once:", table(throughput, [*first, *fast, *last])]
    parts += [f"skipped: {row['system']} {row['model']}: {row['reason']}" for row in result["skipped"]]
    parts += [f"failed: {row['job']}: {row['reason']}" for row in result["failed"]]
    return "\n\n".join(parts)


def bleu(row: Row) -> str | None:
    """BLEU, with the range over seeds where there are several."""
    if "bleu" not in row:
        return None
    seeds = row.get("bleu_of_seeds", ())
    spread = f" ({min(seeds):.2f}-{max(seeds):.2f}, {len(seeds)} seeds)" if len(seeds) > 1 else ""
    return f"{row['bleu']:.2f}{spread}"


def quartiles(row: Row) -> str:
    """The median of a line's latency, with quartiles."""
    _, low, middle, high, _ = row["ms_percentiles"]
    return f"{middle:.4g} ({low:.4g}-{high:.4g})"
