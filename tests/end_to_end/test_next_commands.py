"""The lines "next:", with which commands end: what they say can be run as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import pytest

from amlp_fairseq.cli.main import FAIRSEQ, MODULES
from amlp_fairseq.training.following import say_after_checkpoint, scale_of, unused

MODELS = commands.ROOT / "examples/models"
WORDS = "the a big small man woman dog house sees likes finds near under car".split()


def next_of(printed: str) -> list[str]:
    """The words after ``amlp-fairseq`` of the last line, which names the next command."""
    name, program, *words = shlex.split(printed.splitlines()[-1])
    assert (name, program) == ("next:", "amlp-fairseq"), printed[-2000:]
    return words


def run(words: list[str], *more: object, cwd: Path, text: str = "") -> str:
    return commands.run("amlp_fairseq.cli.main", *words, *more, cwd=cwd, text=text)


def test_a_page_says_for_every_command_what_comes_next() -> None:
    page = (commands.ROOT / "docs/output-format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", page.partition("## The next command")[2], flags=re.MULTILINE)
    table = {name: following for names, following in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert table.keys() == {*MODULES, "path", *FAIRSEQ}
    for name, package in MODULES.items():
        source = (commands.PLUGIN / package / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
        assert (table[name] != "none") == ("say_next" in source or "say_after_checkpoint" in source), name


def test_from_text_to_a_translator(tmp_path: Path) -> None:
    """Only what makes it short is added to the commands, and the device."""
    lines = [" ".join(WORDS[(i * (j + 2) + j) % 14] for j in range(3 + i % 5)) for i in range(90)]
    for name, part in (("train", lines), ("valid", lines[:4]), ("test", lines[:4])):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("".join(line + "\n" for line in part), encoding="utf-8")
    files = [word for name in ("train", "valid", "test") for word in (f"--{name}", f"{name}.en", f"{name}.de")]
    printed = run(["prepare", "text", "data"], "--vocab-size", "50", *files, cwd=tmp_path)
    few = ["--cpu", "--max-update", "2", "--save-interval-updates", "1", "--encoder-layers", "1", "--eval-bleu"]
    printed = run(next_of(printed), *few, cwd=tmp_path)
    printed = run(next_of(printed), "--cpu", "--max-len-b", "8", "--lenpen", "1", cwd=tmp_path)
    package = next_of(printed)
    printed = run(package, cwd=tmp_path)
    assert run(next_of(printed), "--cpu", text="the man\n\n", cwd=tmp_path).endswith("\n\n")

    # A folder of that name is there now, and the data may be elsewhere than where the training found them.
    (tmp_path / "data").rename(tmp_path / "moved")
    printed = run(["evaluate", "transformer", "moved"], "--cpu", "--max-len-b", "8", "--lenpen", "1", cwd=tmp_path)
    again = next_of(printed)
    assert again == ["package", "transformer", "--out", "transformer-model-2", "--data", "moved/data-bin"]
    run(again, cwd=tmp_path)

    printed = run(["distill", "transformer", "moved", "distilled"], "--cpu", "--max-len-b", "8", cwd=tmp_path)
    student = next_of(printed)
    assert student[:2] == ["train", "distilled"]
    assert student[-4:] == ["--scale", "multi30k", "--finetune-from-model", "transformer/average.pt"]  # the teacher's
    assert "fairseq-train distilled" in run(student, "--print", "--cpu", cwd=tmp_path)


@pytest.mark.parametrize("corpus", ["", "embedded", "wmt14_en_de"])
def test_a_student_is_of_its_teachers_size(corpus: str, tmp_path: Path) -> None:
    """A teacher of no known scale says nothing: people's own text is not Multi30k."""
    (tmp_path / "text.json").write_text(f'{{"corpus": "{corpus}"}}', encoding="utf-8")
    sizes = {"encoder_embed_dim": 128, "encoder_ffn_embed_dim": 256, "encoder_layers": 2, "decoder_layers": 2}
    assert scale_of(tmp_path / "model.pt", {"model": sizes}, tmp_path) == ("embedded", True)
    others = {"model": {**sizes, "encoder_layers": 3}}
    expected = {"": "paper", "embedded": "embedded", "wmt14_en_de": "paper"}[corpus]
    assert scale_of(tmp_path / "model.pt", others, tmp_path) == (expected, False)


def test_after_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(task: str, **options: Any) -> str:
        say_after_checkpoint(tmp_path / "x.pt", {"task": {"_name": task, "data": str(tmp_path), **options}})
        return capsys.readouterr().err.replace(str(tmp_path), "HERE")

    generate = "next: amlp-fairseq generate HERE --path HERE/x.pt --task"
    assert said("language_modeling") == "next: amlp-fairseq eval-lm HERE --path HERE/x.pt\n"
    assert said("translation_interleaved", words_per_direction=2) == (
        f"{generate} translation_interleaved --words-per-direction 2\n"
    )
    assert said("translation_cmlmc") == f"{generate} translation_cmlmc\n"
    assert said("text_to_speech") == said("translation", data="gone") == ""
    (tmp_path / "text.json").write_text("{}", encoding="utf-8")
    assert said("translation") == "next: amlp-fairseq package HERE/x.pt --out HERE/x\n"
    (tmp_path / "x").mkdir()
    assert unused(tmp_path / "x") == tmp_path / "x-2"


def test_compare_and_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from amlp_fairseq.cli import compare, main

    (tmp_path / "text").write_text("She falls asleep.\n", encoding="utf-8")
    files = ["--source", tmp_path / "text", "--reference", tmp_path / "text"]
    model = ["--model", MODELS / "ibdecoder", "--model", f"{MODELS / 'ibdecoder'} --beam 1"]
    commands.call(compare, monkeypatch, *model, *files)
    captured = capsys.readouterr()
    assert "next:" not in captured.out
    commands.call(SimpleNamespace(__name__="x", main=lambda: main.run("watch", next_of(captured.err)[1:])), monkeypatch)
    assert "schläft" in capsys.readouterr().out
