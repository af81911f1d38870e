"""The text steps of amlp-fairseq prepare: archives, filters, files that are whole or are not there."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path
from urllib.error import URLError

import pytest

from amlp_fairseq.corpora import text

Pairs = list[tuple[str, str]]


def rows(folder: Path, files: dict[str, bytes]) -> Pairs:
    """What an archive of these files has of ``x/text.{}``."""
    with tarfile.open(folder / "test.tgz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return list(text.archive_rows(folder / "test.tgz", "x/text.{}", ("en", "de"), folder / "unpacked"))


def test_archives_are_read_by_lines_and_pairs(tmp_path: Path) -> None:
    english = "one\ttwo\r\n three\u2028four  \n\nfive\x0csix\n".encode()
    german = b"eins zwei\r\ndrei vier\nohne\nf\rs"
    made = rows(tmp_path, {"x/text.en": english, "x/text.de": german, "y/text.de": b"no"})
    assert made == [("one two", "eins zwei"), ("three four", "drei vier"), ("", "ohne"), ("five six", "f s")]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"x/text.en": b"a\nb\n", "x/text.de": b"a\nb\nc\n"}, r"test\.tgz: text\.en has 2 sentences, text\.de has 3"),
        (
            {"x/text.en": b"a\n"},
            r"test\.tgz: 0 of its files match 'x/text\.de', 1 match 'x/text\.en'; it holds x/text",
        ),
        ({}, r"test\.tgz: 0 of its files match 'x/text\.en'"),
    ],
)
def test_sides_that_do_not_fit_are_refused(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        rows(tmp_path, files)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.en", b"good\nna\xefve\n", "a.en, line 2: 'utf-8' codec can't decode byte 0xef"),
        ("a.en.gz", gzip.compress(b"a\n" * 9999)[:-20], "a.en.gz: Compressed file ended before"),
        ("a.en.gz", b"a\n", "a.en.gz: Not a gzipped file"),
    ],
    ids=["Latin-1", "cut off", "not compressed"],
)
def test_damaged_files_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path}/{message}")):
        list(text.lines(tmp_path / name))


def test_a_file_that_is_not_whole_has_not_its_name(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), text.writing(tmp_path / "a", tmp_path / "b"):
        raise ZeroDivisionError
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("first", "second", "good"),
    [("a b c", "a b", True), ("a b c d", "a b", False), ("a b", "a b c d", False), ("", "a", False), ("", "", False),
     ("a b c d e f", "a b c d", False), ("a b c d e", "a b c d", True)],
)  # fmt: skip
def test_filter(first: str, second: str, good: bool) -> None:
    assert text.is_good(first, second, 5, 1.5) is good


@pytest.mark.parametrize("filter_by", ["words", "pieces", "none"])
def test_every_third_pair_is_held_out(filter_by: str, tmp_path: Path) -> None:
    """Of those that the filter keeps; in no order of steps a pair is lost, or in both sets."""
    folder = tmp_path / "files"
    folder.mkdir()
    pairs = [(f"a{i} b", f"A{i} B" if i % 5 else "A B C D E") for i in range(20)]
    for side, language in enumerate(("en", "de")):
        for name, some in (("train", pairs), ("test", pairs[:2])):
            content = "".join(f"{pair[side]}\n" for pair in some)
            (folder / f"{name}.{language}").write_text(content, encoding="utf-8")
    settings = text.Settings(
        **{"name": "x", "languages": ("en", "de"), "train": [(str(folder), "train.{}")], "valid": []},
        **{"test": [(str(folder), "test.{}")], "valid_set": "third", "test_set": "t", "segmentation": "none"},
        **{"filter_by": filter_by, "hold_out": 3, "max_length": 4, "max_ratio": 2.0},
    )
    text.Texts(tmp_path, settings).run()
    good = [pair for pair in pairs if filter_by == "none" or (pair[1].startswith("A") and " B C" not in pair[1])]
    assert len(good) == (20 if filter_by == "none" else 16)

    def read(stage: str, name: str) -> Pairs:
        sides = [(tmp_path / f"text/{stage}/{name}.{language}").read_text().splitlines() for language in ("en", "de")]
        return list(zip(*sides, strict=True))

    assert read("pieces", "valid") == read("raw", "valid") == good[2::3]
    assert read("pieces", "train") == [pair for i, pair in enumerate(good) if i % 3 != 2]
    assert read("pieces", "test") == pairs[:2]
    for language in ("en", "de"):
        (tmp_path / f"text/raw/test.{language}").write_text("a\n", encoding="utf-8")
    with pytest.raises(ValueError, match="test: 1 raw lines, 2 lines of pieces"):
        text.Texts(tmp_path, settings).manifest()


def test_evaluation_sets_are_named() -> None:
    with pytest.raises(ValueError, match=r"evaluation set 'wmt99': choose one of .*wmt14"):
        list(text.evaluation_rows("wmt99", "en", "de", ("en", "de")))
    with pytest.raises(ValueError, match="evaluation set 'wmt14' has no en-ro; it has cs-en, de-en"):
        list(text.evaluation_rows("wmt14", "en", "ro", ("en", "ro")))


def test_an_evaluation_set_that_cannot_be_downloaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object, pair: str) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr("sacrebleu.dataset.base.Dataset.source", fails)
    with pytest.raises(ValueError, match=r"set 'wmt14' cannot be had \(.*not known>\): .* folder that SACREBLEU names"):
        list(text.evaluation_rows("wmt14", "en", "de", ("en", "de")))
