"""amlp-fairseq translate, watch and compare with several sentences in a text, and sentences that are too long."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import commands
import pytest

from amlp_fairseq import Translator
from amlp_fairseq.cli import compare, translate, watch
from amlp_fairseq.model_folder.config import read_config
from amlp_fairseq.translator import text_shards as shards

MODEL = commands.ROOT / "examples/models/ar"
LONG = "the friend has drunk milk and " * 8 + "he sleeps."
LINES = ["She falls asleep. He sleeps.", "", f"He sleeps. {LONG}", LONG, "He sleeps."]


def translated(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: object) -> list[str]:
    """The output, which has a line for each line."""
    (folder / "in").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    commands.call(translate, monkeypatch, *words, model=MODEL, input=folder / "in", output=folder / "out")
    *lines, last = (folder / "out").read_text(encoding="utf-8").split("\n")
    assert (len(lines), last) == (len(LINES), "")
    return lines


def test_a_line_for_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What is cut is said once."""
    lines = translated(monkeypatch, tmp_path)
    assert lines == Translator(MODEL).translate(LINES)
    assert lines[0] == "Sie schläft ein. Er schläft."
    (said,) = capsys.readouterr().err.splitlines()
    limit = Translator(MODEL).max_length
    assert said.startswith(
        f"amlp-fairseq translate: line 3 has a sentence of more than {limit} pieces (--max-length), "
    )
    assert translated(monkeypatch, tmp_path, "--no-split-sentences")[0] != lines[0]


def test_the_configuration_of_a_model_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the options, the ``Translator`` and fairseq's loading; another folder in its place is read anew."""
    model, read, read_text = tmp_path / "model", list[Path](), Path.read_text

    def counted(self: Path, *args: Any, **kwargs: Any) -> str:
        read.extend([self] * (self.name == "config.json"))
        return read_text(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", counted)
    for count, other in enumerate(("ibdecoder", "ar"), 1):
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(MODEL.parent / other, model)
        commands.call(translate, monkeypatch, model=model, input="/dev/null", output=tmp_path / "out")
        assert read == [model / "config.json"] * count
    config = read_config(model)
    config["languages"].clear()
    assert read_config(model)["languages"] == ["en", "de"]


def test_parts_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["--jsonl", "--nbest", "2", "--print-alignment"]
    found = [json.loads(line) for line in translated(monkeypatch, tmp_path, *words)]
    assert [each["source"] for each in found] == LINES
    assert [bool(each["cuts"]) for each in found] == [False, False, True, True, False]
    assert [part["source"] for part in found[0]["parts"]] == ["She falls asleep.", "He sleeps."]
    assert [part["text"] for part in found[0]["parts"]] == ["Sie schläft ein.", "Er schläft."]
    for part in found[0]["parts"]:
        assert part["score"] < 0
        assert len(part["alternatives"]) == 1
        assert part["alignment"]
        assert not part["cut"]


def test_shards_say_what_is_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    expected = translated(monkeypatch, tmp_path)
    capsys.readouterr()
    commands.call(translate, monkeypatch, model=MODEL, shards=tmp_path / "in", output=tmp_path / "shards")
    assert (tmp_path / "shards/in").read_text(encoding="utf-8").splitlines() == expected
    assert "1 of 1: in: 5 lines, 2 with a sentence of more than" in capsys.readouterr().err


def test_shards_are_not_continued_with_other_parts(tmp_path: Path) -> None:
    """Neither by an option nor by the folder of the model."""
    model = shutil.copytree(MODEL, tmp_path / "model")

    def begin(**settings: Any) -> None:
        shards.begin(tmp_path / "out", [], shards.Job(model, settings, jsonl=False, buffer_size=1).identity)

    begin()
    begin(split_sentences=None)
    begin(split_sentences=True)
    with pytest.raises(ValueError, match="was begun with other --split-sentences "):
        begin(split_sentences=False)


def test_watch_shows_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"2 sentences, .* give one, such as 'She falls asleep\.', or --no-split-sent"):
        commands.call(watch, monkeypatch, LINES[0], model=MODEL)
    commands.call(watch, monkeypatch, LINES[0], "--no-split-sentences", model=MODEL)
    assert "decoder calls: Sie schläft ein." in capsys.readouterr().out


def test_compare_shows_what_translate_writes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text(f"{LINES[0]}\n", encoding="utf-8")
    files = {"model": MODEL, "source": tmp_path / "text", "reference": tmp_path / "text"}
    commands.call(compare, monkeypatch, **files)
    assert "Sie schläft ein. Er schläft." in capsys.readouterr().out
    commands.call(compare, monkeypatch, "--no-split-sentences", **files)
    assert "Sie schläft ein. Er schläft." not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--nbest=3"], ["--print-alignment"]])
def test_what_is_not_printed_is_not_asked_for(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = words[0].replace("=", " ")
    with pytest.raises(ValueError, match=f"^{asked} needs --jsonl: "):
        commands.call(translate, monkeypatch, *words, model=MODEL)
    with pytest.raises(ValueError, match=f"^{asked} has no effect: "):
        commands.call(watch, monkeypatch, "A sentence.", *words, model=MODEL)
    (tmp_path / "text").write_text("He sleeps.\n", encoding="utf-8")
    files = {"source": tmp_path / "text", "reference": tmp_path / "text"}
    with pytest.raises(ValueError, match=f"^{asked} has no effect: "):
        commands.call(compare, monkeypatch, *words, model=MODEL, **files)
