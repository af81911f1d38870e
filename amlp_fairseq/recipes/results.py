"""Results: lines of JSON, one for each way of decoding a trained model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock


def read_results(path: Path) -> list[dict[str, Any]]:
    """All lines, each with its ``split``, ``valid`` or ``test``."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        # The first results do not have it: they are of test sets, unless the set is the embedded corpus' "valid".
        line.setdefault("split", "valid" if line["subset"] == "valid" else "test")
    return lines


def append_results(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """Add whole lines to a file that others may write to as well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(result, ensure_ascii=False) + "\n" for result in results)
    with FileLock(f"{path}.lock"), path.open("a", encoding="utf-8") as file:
        file.write(text)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
