"""The PMI estimate against the paper's Table 3."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import commands
import pytest

sys.path.insert(0, str(commands.ROOT / "examples/word_dependence"))
import pmi


def log(perplexity: float) -> str:
    return (
        "2026-01-01 00:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 9.1 | nll_loss 8.9 | ppl 477\n"
        f"2026-01-01 00:01:00 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 9.1 | "
        f"nll_loss {math.log2(perplexity):.3f} | ppl {perplexity}\n"
        "2026-01-01 00:02:00 | INFO | train | epoch 002 | loss 1.0 | nll_loss 1.0 | ppl 2\n"
    )


def test_table_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table's estimates from the table's perplexities, which are rounded."""
    table = {"base": 4.04, "sa": 6.95, "bidirectional": 4.86, "ibdecoder": 4.72}
    monkeypatch.setattr(pmi, "validate", lambda data, path, rest: pmi.log10_perplexity(log(table[str(path)])))
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr(pmi, "facts_of", lambda data, path: {"system": path.name})
    commands.call(pmi, monkeypatch, tmp_path, *table, results=results)
    printed = capsys.readouterr().out.splitlines()
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert [line["system"] for line in lines] == [*table]
    assert [line["perplexity"] for line in lines] == pytest.approx([*table.values()], abs=0.01)
    for (base, other), estimate, text, line in zip(
        [("base", "sa"), ("bidirectional", "ibdecoder")], [0.235, -0.014], printed, lines[1::2], strict=True
    ):
        assert text.startswith(f"perplexity {table[base]} and {table[other]}, ")
        assert float(text.split()[-1]) == pytest.approx(estimate, abs=0.0021)
        assert line["pmi"] == pytest.approx(estimate, abs=0.0021)


def test_checkpoints_come_in_pairs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.call(pmi, monkeypatch, "data", "base", "sa", "bidirectional")
    assert "3 checkpoints cannot be paired" in capsys.readouterr().err


def test_a_log_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match="no validation line"):
        pmi.log10_perplexity("nothing")
