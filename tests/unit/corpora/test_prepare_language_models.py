"""amlp-fairseq prepare for language models: the billion word benchmark on a stand-in of the same layout, text of one's
own."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path

import commands
import pytest
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset

from amlp_fairseq.corpora import prepare

NAME = "1-billion-word-language-modeling-benchmark-r13output"
TRAIN = ["the cat sat .", "the dog sat .", "the cat ran ."]


def binarised(data: Path, split: str) -> list[str]:
    """The sentences as the task language_modeling reads them."""
    dictionary = Dictionary.load(str(data / "dict.txt"))
    return [dictionary.string(ids) for ids in load_indexed_dataset(str(data / split), dictionary)]


def test_billion_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All training shards; the first held-out one is the test set, the second one validates; words that occur once or
    twice are unknown."""
    files = {f"training-monolingual.tokenized.shuffled/news.en-0000{i + 1}-of-00100": TRAIN[i] for i in range(3)}
    for i, text in enumerate(["the old cat .", "the sat", "the"]):
        files[f"heldout-monolingual.tokenized.shuffled/news.en.heldout-0000{i}-of-00050"] = text
    archive = tmp_path / f"mirror/www.statmt.org/lm-benchmark/{NAME}.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{NAME}/{name}")
            member.size = len(text) + 1
            tar.addfile(member, io.BytesIO(f"{text}\n".encode()))
    (tmp_path / "SUMS").write_text(f"{hashlib.sha256(archive.read_bytes()).hexdigest()}  {archive.name}\n")
    given = {"mirror": f"file://{tmp_path}/mirror", "checksums": tmp_path / "SUMS", "workers": 1}
    commands.call(prepare, monkeypatch, "billion_word", tmp_path / "out", **given)
    assert "3 sentences collected, 30301028 are published" in capsys.readouterr().err
    data = tmp_path / "out/data-bin"
    assert binarised(data, "train") == ["the <unk> <unk> .", "the <unk> <unk> .", "the <unk> <unk> ."]
    assert binarised(data, "test") == ["the <unk> <unk> ."]
    assert binarised(data, "valid") == ["the <unk>"]
    assert (data / "raw/test.en").read_text(encoding="utf-8") == "the old cat .\n"


@pytest.mark.parametrize("name", ["text.en", "braces {} | é.en"])
def test_text_of_ones_own(name: str, tmp_path: Path) -> None:
    """One file for each part; empty lines of the training text are left out, those of the others stay."""
    folder = tmp_path / "text"
    folder.mkdir()
    words = []
    for role, text in (("train", [*TRAIN * 20, ""]), ("valid", TRAIN[:2]), ("test", ["a  cat", "", TRAIN[0]])):
        path = folder / f"{role} {name}"
        path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
        words += [f"--{role}", path]
    commands.run("amlp_fairseq.corpora.prepare", "text", tmp_path / "out", *words, "--vocab-size", 30, "--workers", 1)
    data = tmp_path / "out/data-bin"
    assert len(binarised(data, "train")) == 60
    assert [line.replace(" ", "").replace("\u2581", " ") for line in binarised(data, "test")[1:]] == [
        "",
        " the cat sat .",
    ]
    assert (data / "raw/test.en").read_text(encoding="utf-8").splitlines() == ["a cat", "", TRAIN[0]]
    described = json.loads((data / "text.json").read_text(encoding="utf-8"))
    assert (described["languages"], described["post_process"]) == (["en"], "sentencepiece")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["text", "--train", "a.en", "--valid", "b.en"],
            "text: --test SOURCE TARGET is needed, or one file for a language",
        ),
        (
            ["text", "--train", "a.en", "--valid", "b.en", "b.de", "--test", "c.en"],
            "--valid b.en b.de: two files are needed",
        ),
        (
            ["text", "--train", "a", "--valid", "b.en", "--test", "c.en"],
            "--train a: the suffixes do not name a language",
        ),
        (
            ["text", "--train", "a.en", "--valid", "b.de", "--test", "c.en"],
            "--valid b.de: not the languages of --train, en",
        ),
        (
            ["text", "--train", "a.en", "--valid", "b.en", "--test", "c.en", "--languages", "en", "de"],
            "--languages en de: 1",
        ),
        (["embedded_lm", "--reverse"], "--reverse: the text of embedded_lm is of one language"),
    ],
)
def test_mistakes_are_named(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in words:
        if re.fullmatch(r"[abc](\.\w+)?", word):
            Path(word).write_text("a line\n", encoding="utf-8")
    with pytest.raises((ValueError, SystemExit)) as error:
        commands.call(prepare, monkeypatch, words[0], "out", *words[1:])
    assert message in str(error.value) + capsys.readouterr().err
    assert not Path("out/text").exists()
