"""Results: the lines of JSON that scripts/evaluate.py appends to a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_results(path: Path) -> list[dict[str, Any]]:
    """All lines, each with its ``split``, ``valid`` or ``test``."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        # The first results do not have it: they are of test sets, unless the set is the embedded corpus' "valid".
        line.setdefault("split", "valid" if line["subset"] == "valid" else "test")
    return lines
