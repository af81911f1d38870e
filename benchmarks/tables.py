"""Tables of results in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.training.results import markdown

#: The title of a column, and what stands in it: a field of the row, or what a function makes of the row.
Column = tuple[str, str | Callable[[Row], object]]


def table(rows: Iterable[Row], columns: Sequence[Column]) -> str:
    """A table with a line for each row; numbers have four digits, and what a row lacks is empty."""

    def cell(row: Row, content: str | Callable[[Row], object]) -> str:
        value = row.get(content) if isinstance(content, str) else content(row)
        return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [[cell(row, content) for _, content in columns] for row in rows]
    return markdown([title for title, _ in columns], lines)


def fields(names: Iterable[str]) -> list[Column]:
    """Columns with the names of their fields as titles."""
    return [(name, name) for name in names]


def tables_of(result: Mapping[str, Any], parts: Iterable[str]) -> str:
    """A line on the machine, and a table for each of these parts that a result has."""
    facts = result["environment"]
    text = f"{facts['device']}, {facts['isa']}; commit {facts['commit']}, {facts['date']}\n"
    for part in parts:
        if rows := result.get(part):
            text += f"\n## {part}\n\n{table(rows, fields(rows[0]))}\n"
    return text
