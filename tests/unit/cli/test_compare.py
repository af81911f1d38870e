"""Text and names are shown as they are, whatever brackets are in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import commands
import pytest
from fairseq.sequence_generator import SequenceGenerator

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


def test_a_long_name_cuts_nothing_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, source = "m" * 70, tmp_path / "text.en"
    source.write_text("The doctor is old.\n", encoding="utf-8")
    model = shutil.copytree(commands.ROOT / "examples/models/ar", tmp_path / name)
    found = [Translation("Der Arzt ist alt.", calls=3)]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(compare, "run", lambda translators, sources: ([found], [12345.6]))
    commands.call(compare, monkeypatch, model=model, source=source, reference=source)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert (cells[0], *cells[3:]) == (name, "3.0", "12345.6", "1.00x")


MODELS = commands.ROOT / "examples/models"
TEXT = ["He says that the student can find the big cars.", "The doctor is sixty years old."]


def test_fairseqs_search_writes_the_same_words() -> None:
    """Their last decoder call differs: the plugin's stops where nothing can change."""
    stock = compare.Candidate.of(f"{MODELS}/ar --engine fairseq").load([], {})
    own = compare.Candidate.of(f"{MODELS}/ar").load([], {})
    assert type(stock.pytorch().search({}, stock.languages).generator) is SequenceGenerator
    assert type(own.pytorch().search({}, own.languages).generator) is not SequenceGenerator
    assert stock.pytorch().search({}, stock.languages).generator.beam_size == 4  # the folder's
    assert [each.text for each in stock.translations(TEXT)] == [each.text for each in own.translations(TEXT)]


def test_options_of_one_model(tmp_path: Path) -> None:
    first = compare.Candidate.of(f"{MODELS}/ar --beam 1 --decode-dtype int8")
    assert first.name == "ar --beam 1 --decode-dtype int8"
    model = first.load(["--beam", "3", "--lenpen", "2"], {"max_tokens": 500})
    assert (model.pytorch().cfg.generation.beam, model.pytorch().cfg.generation.lenpen, model.max_tokens) == (1, 2, 500)
    assert model.pytorch().cfg.task.decode_dtype == "int8"
    spaced = shutil.copytree(MODELS / "ar", tmp_path / "a b --beam 1")
    assert compare.Candidate.of(str(spaced)) == (spaced, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ibdecoder --engine fairseq", "--engine fairseq: .*/ibdecoder does not write one word after the other"),
        ("cmlmc --engine fairseq", "--engine fairseq: .*/cmlmc does not write one word after the other"),
        ("ar --engine stock", "--engine stock: it is fairseq, or is left out"),
    ],
)
def test_what_fairseqs_search_cannot_decode(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare.Candidate.of(f"{MODELS}/{text}").load([], {})
