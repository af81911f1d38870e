"""The numbers of benchmarks/decoding.py in Markdown."""

from __future__ import annotations

from typing import Any

from amlp_fairseq.evaluation.decoding_times import Row, SpeedUp
from benchmarks.tables import Column, fields, table

#: What identifies a row.
KEYS = ("batch", "system", "precision", "decoding")


def tables(result: dict[str, Any]) -> str:
    """All tables, and what was skipped."""
    rows = result["decoding"]
    parts = [settings_table(rows), length_table([row for row in rows if row["batch"] == rows[0]["batch"]])]
    if bound := result["bound"]:
        columns: list[Column] = [("ar float32", "decoding"), *part_columns(bound["steps"][0], "bound_ms_by_part")]
        for title in ("bound ms", "step ms", "over bound", "start ms"):
            columns.append((title, three_decimals(title.replace(" ", "_"))))
        parts.append(f"Memory: {bound['gb_per_second']:.1f} GB/s\n\n{table(bound['steps'], columns)}")
        if "step_ms_by_part" in bound["steps"][0]:
            columns = [("ar float32", "decoding"), *part_columns(bound["steps"][0], "step_ms_by_part")]
            parts.append(table(bound["steps"], columns))
    if result["training"]:
        columns = [("training", "system"), *fields(("words", "seconds", "words_per_second", "over_transformer"))]
        parts.append(table(result["training"], columns))
    parts += [f"skipped: {row['system']} {row['precision']}: {row['reason']}" for row in result["skipped"]]
    return "\n\n".join(parts)


def settings_table(rows: list[Row]) -> str:
    """A line for each setting."""

    def percentile(index: int) -> Any:
        return lambda row: row["ms_percentiles"][index]

    def two_decimals(key: str) -> Any:
        return lambda row: f"{row[key]:.2f}" if key in row else "not measured"

    columns: list[Column] = [
        *fields(KEYS), ("ms", percentile(1)), ("5 %", percentile(0)), ("95 %", percentile(2)),
        ("sentences/s", "sentences_per_second"), ("tokens/s", "tokens_per_second"), ("decoder calls", "decoder_calls"),
        ("speed-up", lambda row: SpeedUp(row["speedup"], *row["speedup_quartiles"])),
        ("disturbed", lambda row: "; ".join(row["disturbed"]) or "no"), ("peak MiB", two_decimals("peak_mib")),
    ]  # fmt: skip
    if any("bleu" in row for row in rows):
        columns.append(("BLEU", two_decimals("bleu")))
    return table(rows, columns)


def length_table(rows: list[Row]) -> str:
    """Medians by length of the source, of rows of one batch size."""

    def median(name: str) -> Any:
        return lambda row: row["ms_by_source_length"][name]

    bins = [(f"ms, source {name}", median(name)) for name in rows[0]["ms_by_source_length"]]
    return table(rows, [*fields(KEYS), *bins])


def three_decimals(*keys: str) -> Any:
    """The content of a column with the value under some keys, one in the other."""

    def cell(row: Row) -> str:
        value: Any = row
        for key in keys:
            value = value[key]
        return f"{value:.3f}"

    return cell


def part_columns(row: Row, name: str) -> list[Column]:
    """A column for each part of a time."""
    return [(f"{part} ms", three_decimals(name, part)) for part in row[name]]
