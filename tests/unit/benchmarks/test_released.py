"""benchmarks/released.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import released


@pytest.mark.long
def test_tiny_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All engines translate, and in float32 write the same words, or it would have ended."""
    tiny = {"post-norm": (500, 2, 64, []), "pre-norm": (500, 1, 32, released.PRE_NORM)}
    monkeypatch.setattr(released, "MODELS", tiny)
    out, table = tmp_path / "numbers.json", tmp_path / "numbers.md"
    words = ["released", "--models", *tiny, "--batch", "3", "--length", "5", "--repeats", "1", "--out", out]
    monkeypatch.setattr("sys.argv", [*map(str, words), "--markdown", str(table)])
    released.main()
    result = json.loads(out.read_text(encoding="utf-8"))
    assert len(result["translation"]) == 2 * 2 * 2 * 2
    assert all(row["engine/fairseq"] > 0 and row["engine/ctranslate2"] > 0 for row in result["translation"])
    assert len(result["load"]) == 2 * 5
    assert table.read_text(encoding="utf-8") == released.tables(result)
