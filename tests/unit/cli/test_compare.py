"""Text and names are shown as they are, whatever brackets are in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import commands
import pytest

from amlp_fairseq.cli import compare
from amlp_fairseq.translator.translator import Translation


def test_brackets_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    source, model = tmp_path / "text.en", tmp_path / "[b]ar"
    sources = ["[/b] He says that", "[music] [red]he [/red] :smile:"]
    source.write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    shutil.copytree(commands.ROOT / "examples/models/ar", model)
    found = [Translation("[/i] Er sagt das", calls=3), Translation("[Musik] [green]er [/green] :smile:", calls=3)]
    monkeypatch.setattr(compare, "run", lambda translators, sources: ([found], [1.0]))
    commands.call(compare, monkeypatch, model=model, source=source, reference=source)
    printed = capsys.readouterr().out
    for line in (*sources, *(each.text for each in found)):
        assert f"  {line}\n" in printed
    assert printed.count(model.name) == 3
