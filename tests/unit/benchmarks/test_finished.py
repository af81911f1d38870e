"""benchmarks/finished.py: what it counts, by hand, and the command on a model that comes along."""

from __future__ import annotations

import json
from pathlib import Path

import commands
import pytest

from amlp_fairseq.translator.translator import Translation
from benchmarks import finished


def test_differences_by_hand() -> None:
    best = [
        Translation("ein Hund .", -1.0, 3),
        Translation("die Katze schläft heute .", -2.0, 2),
        Translation("ja .", -0.5, 1),
    ]
    everything = [Translation("ein Hund .", -1.0, 3), Translation("die", -2.5, 1), Translation("nein .", -0.25, 1)]
    references = ["ein Hund .", "die Katze schläft heute .", "ja ."]
    line = finished.compared({"best": best, "all": everything}, references, "de")
    assert (line["sentences"], line["different"], line["higher"], line["lower"]) == (3, 2, 1, 1)
    assert line["score"] == pytest.approx({"best": -3.5 / 3, "all": -3.75 / 3}, abs=1e-4)
    assert line["calls"] == pytest.approx({"best": 2, "all": 5 / 3}, abs=1e-4)
    assert line["bleu"]["best"] == 100 > line["bleu"]["all"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a sentence whose first output is another one with Algorithm 1."""
    (tmp_path / "en").write_text("The woman reads a book.\n", encoding="utf-8")
    (tmp_path / "de").write_text("Die Frau liest ein Buch.\n", encoding="utf-8")
    model = commands.ROOT / "examples/models/ibdecoder"
    commands.call(finished, monkeypatch, model, source=tmp_path / "en", reference=tmp_path / "de")
    folder, literal = map(json.loads, capsys.readouterr().out.splitlines())
    assert [folder["scoring"], literal["scoring"]] == ["folder", "algorithm 1"]
    assert folder["sentences"] == literal["sentences"] == 1
    assert literal["score"]["best"] > literal["score"]["all"]
