"""amlp-fairseq shortlist: likely translations, in the text format of Marian."""

from __future__ import annotations

import gzip
import itertools
import math
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest

from amlp_fairseq.corpora import lexicons, shortlist
from amlp_fairseq.engine.shortlist import Shortlist
from amlp_fairseq.text import lexicon
from amlp_fairseq.text.dictionary import Dictionary

PAIRS = [
    ("the house", "das Haus"),
    ("the book", "das Buch"),
    ("a book", "ein Buch"),
    ("a NULL", "NULL ein"),
    ("", "Buch"),
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for language, texts in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / f"train.{language}").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    words = ["-s", "en", "-t", "de", "--destdir", tmp_path / "data", f"--trainpref={tmp_path / 'train'}"]
    commands.run("fairseq_cli.preprocess", *words)
    return tmp_path / "data"


def by_enumeration(pairs: list[tuple[list[int], list[int]]], iterations: int) -> dict[tuple[int, int], float]:
    """p(target | source) of IBM model 1 after some iterations, by the sum over all alignments of each pair of
    sentences (Brown et al. 1993, Eq. 5 and 6), beginning with the same probability of all words."""
    links = {(s, t) for source, target in pairs for s in [0, *source] for t in target}
    p = dict.fromkeys(links, 1.0)
    for _ in range(iterations):
        counts = dict.fromkeys(links, 0.0)
        for source, target in pairs:
            ways = [*itertools.product([0, *source], repeat=len(target))]
            weights = [math.prod(p[s, t] for s, t in zip(way, target, strict=True)) for way in ways]
            for way, weight in zip(ways, weights, strict=True):
                for link in zip(way, target, strict=True):
                    counts[link] += weight / sum(weights)
        totals = {s: sum(count for (other, _), count in counts.items() if other == s) for s, _ in links}
        p = {(s, t): count / totals[s] for (s, t), count in counts.items()}
    return p


def test_ibm_model_1(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [([4, 5], [7, 8]), ([4, 6], [7, 9]), ([6, 6, 5], [9, 8, 8]), ([5], []), ([], [7])]
    sides = [[np.array(side, np.int64) for side in each] for each in zip(*pairs, strict=True)]
    table, count = lexicons.model_1(*sides, 10)
    found = dict(
        zip(zip(table.source.tolist(), table.target.tolist(), strict=True), table.probabilities(), strict=True)
    )
    expected = by_enumeration([pair for pair in pairs if all(pair)], lexicons.ITERATIONS)
    assert found == pytest.approx(expected, abs=1e-12)
    assert count == 3
    monkeypatch.setattr(lexicons, "MOST_LINKS", 10)  # every third pair of 23 links
    table, count = lexicons.model_1(*sides, 10)
    assert {*table.source.tolist()} == {0, 4, 5}
    nothing: lexicons.Sentences = [np.empty(0, np.int64)]
    assert lexicons.model_1(nothing, nothing, 10)[1] == 0


def made(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, *words: object) -> dict[tuple[str, str], float]:
    commands.call(shortlist, monkeypatch, data, "--out", out, *words)
    return {(target, source): probability for target, source, probability in lexicon.read(out)}


def test_the_file(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``TARGET SOURCE PROBABILITY``; the word NULL has no place in it, but as the source of frequent words."""
    words = ("--aligner", "model-1", "--frequent", 2, "--best", 1)
    found = made(data, tmp_path / "new/lex.s2t", monkeypatch, *words)
    assert [*found][:2] == [("Buch", "NULL"), ("das", "NULL")] or [*found][:2] == [("Buch", "NULL"), ("ein", "NULL")]
    assert found["Buch", "NULL"] == pytest.approx(3 / 9, abs=1e-6)
    assert {*found} - {*[*found][:2]} == {("das", "the"), ("Haus", "house"), ("Buch", "book"), ("ein", "a")}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["lex.s2t"]
    first = (tmp_path / "new/lex.s2t").read_text(encoding="utf-8").splitlines()[2].split(" ")
    assert (first[0], first[1]) in found
    assert 0 < float(first[2]) <= 1
    assert made(data, tmp_path / "lex.s2t.gz", monkeypatch, *words) == found
    with gzip.open(tmp_path / "lex.s2t.gz", "rt", encoding="utf-8") as lines:
        assert len([*lines]) == 6
    source, target = (Dictionary(data / f"dict.{language}.txt") for language in ("en", "de"))
    lists = Shortlist.open(tmp_path / "lex.s2t.gz", source.symbols, target.symbols, frequent=1)
    house = {target.symbols[word] for word in lists.of([source.indices["house"]])}
    assert house - {"<s>", "<pad>", "</s>", "<unk>", target.symbols[4], "Buch"} == {"Haus"}


def test_eflomal_counts_the_links_of_both_directions(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in links words of the same place, and in the other direction the first ones alone."""
    program = tmp_path / "bin/eflomal-align"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/bash\nawk \'{ print NF == 2 ? "0-0 1-1" : "" }\' "$2" > "$6"\n'
        'awk \'{ print NF == 2 ? "0-0" : "" }\' "$2" > "$8"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    found = made(data, tmp_path / "lex.s2t", monkeypatch)
    assert found["das", "the"] == 1
    assert found["Buch", "book"] == 1
    assert found["ein", "a"] == 0.5  # of the links to NULL, which is left out, too
    program.write_text("#!/bin/bash\necho it broke; exit 3\n")
    with pytest.raises(ChildProcessError, match="it broke"):
        made(data, tmp_path / "other", monkeypatch, "--aligner", "eflomal")
    program.unlink()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert ("Haus", "house") in made(data, tmp_path / "model-1", monkeypatch)
    with pytest.raises(ValueError, match="pip install"):
        made(data, tmp_path / "other", monkeypatch, "--aligner", "eflomal")
    assert not (tmp_path / "other").exists()


def test_what_cannot_be_read(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: Any, error: type[Exception] = ValueError) -> str:
        with pytest.raises(error) as found:
            commands.call(shortlist, monkeypatch, *words, "--aligner", "model-1")
        return str(found.value)

    assert "exists already" in refused(data, "--out", data / "dict.en.txt")
    assert f"{tmp_path / 'none'}" in refused(tmp_path / "none", "--out", tmp_path / "x", error=FileNotFoundError)
    assert "there are: none" in refused(tmp_path, "--out", tmp_path / "x")
    assert "from de to de" in refused(data, "--out", tmp_path / "x", "-s", "de", "-t", "de")
    (data / "train.de-fr.de.idx").touch()
    assert "de-fr, en-de" in refused(data, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("line", ["a b", "a b c", "a b 2", "a b nan", "a b 0.5 c", ""])
def test_a_line_that_is_none(line: str, tmp_path: Path) -> None:
    (tmp_path / "lex").write_text(f"a b 0.5\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"lex is not a lexical shortlist: line 2: "):
        [*lexicon.read(tmp_path / "lex")]
    (tmp_path / "lex.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"lex.gz is not a lexical shortlist"):
        [*lexicon.read(tmp_path / "lex.gz")]


def test_other_separators_and_spaces_of_other_scripts(tmp_path: Path) -> None:
    """Fields are parted by blanks and tabulators; any other character belongs to a word."""
    (tmp_path / "lex").write_text("x\ty  0.5\na\u00a0b\u2028 \u3000 1e-3\n", encoding="utf-8")
    assert [*lexicon.read(tmp_path / "lex")] == [("x", "y", 0.5), ("a\u00a0b\u2028", "\u3000", 0.001)]
