"""benchmarks/engine.py."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest

from benchmarks import engine, products, released

SMALL = {"layers": 1, "embed_dim": 16, "ffn_embed_dim": 24, "heads": 2, "vocabulary": 50}


def test_systems_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BASE", SMALL)
    rows = engine.base(Namespace(batch=3, length=5, repeats=2, before=commands.ROOT), tmp_path)
    assert {(row["precision"], row["beam"], row["sentences"]) for row in rows} >= {
        (precision, beam, count) for precision in ("float32", "int8") for beam in (4, 1) for count in (3, 1)
    }
    assert all(row["engine ms"] > 0 for row in rows)
    assert all(row["engine/before"] > 0 and row["engine/ctranslate2"] > 0 for row in rows if row["precision"] == "int8")


def test_depths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "BASE", SMALL)
    monkeypatch.setattr(engine, "VOCABULARIES", (30, 60))
    monkeypatch.setattr(engine, "DEPTHS", {"transformer-deep": "12-1", "ssru-tiny": "6-1, SSRU"})
    rows = engine.depths(Namespace(length=5, repeats=1, threads=1), tmp_path)
    assert [(row["vocabulary"], row["layers"]) for row in rows] == [
        (size, layers) for size in (30, 60) for layers in ("12-1", "6-1, SSRU")
    ]
    assert all(row["MB"] > 0 and row["beam 4, ms"] > 0 and row["beam 1, ms"] > 0 for row in rows)


def test_other_words_end_a_comparison() -> None:
    calls = {"engine": lambda: [["a"]], "pytorch": lambda: [["b"]]}
    assert engine.compared(calls, 1, same=False)["engine/pytorch"] > 0
    with pytest.raises(SystemExit, match="do not write the same words"):
        engine.compared(calls, 1, same=True)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("engine", engine.tables),
        ("students", engine.tables),
        ("products", products.tables),
        ("released", released.tables),
        ("released_nllb", released.tables),
    ],
)
def test_the_committed_tables_are_those_of_the_committed_numbers(
    name: str, tables: Callable[[dict[str, Any]], str]
) -> None:
    results = commands.ROOT / "docs/results"
    result = json.loads((results / f"benchmark_{name}.json").read_text(encoding="utf-8"))
    assert tables(result) == (results / f"benchmark_{name}.md").read_text(encoding="utf-8")
