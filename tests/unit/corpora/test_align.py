"""amlp-fairseq align: the copy with alignments, as fairseq-preprocess would have made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import commands
import pytest
from fairseq.data import data_utils

from amlp_fairseq.corpora import align

PAIRS = {"train": [("a b c", "x y z"), ("c", "z x")], "valid": [("b a", "y")]}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two sets, and a stand-in for eflomal, which aligns the first words of each line."""
    for part, lines in PAIRS.items():
        for language, texts in zip(("en", "de"), zip(*lines, strict=True), strict=True):
            (tmp_path / f"{part}.{language}").write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    words = ["-s", "en", "-t", "de", "--joined-dictionary", "--destdir", tmp_path / "data"]
    commands.run("fairseq_cli.preprocess", *words, *(f"--{part}pref={tmp_path / part}" for part in PAIRS))
    (tmp_path / "data/text.json").write_text("{}", encoding="utf-8")
    program = tmp_path / "bin/eflomal-align"
    program.parent.mkdir()
    program.write_text('#!/bin/bash\npaste "$2" "$4" > "$(dirname "$0")/read"; sed "s/.*/0-0 0-1/" "$2" > "$6"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return tmp_path / "data"


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_alignments_are_added_and_nothing_is_changed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new/out"
    commands.call(align, monkeypatch, data, out)
    read = [line.split("\t") for line in (tmp_path / "bin/read").read_text(encoding="utf-8").splitlines()]
    assert [(source.strip(), target.strip()) for source, target in read] == PAIRS["train"] + PAIRS["valid"]
    made, given = files(out), files(data)
    assert made.items() >= given.items()
    assert made.keys() - given.keys() == {f"{part}.align.en-de.{kind}" for part in PAIRS for kind in ("bin", "idx")}
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    for part, lines in PAIRS.items():
        alignments = data_utils.load_indexed_dataset(str(out / f"{part}.align.en-de"), None)
        assert [each.tolist() for each in alignments] == [[0, 0, 0, 1]] * len(lines)


def test_what_cannot_be_aligned(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: Any, error: type[Exception] = ValueError) -> str:
        with pytest.raises(error) as found:
            commands.call(align, monkeypatch, *words)
        assert not (tmp_path / "out").exists()
        return str(found.value)

    assert f"OUT {data} exists already" in refused(data, data)
    program = tmp_path / "bin/eflomal-align"
    program.write_text('#!/bin/bash\necho 0-0 > "$6"\n')
    assert "fewer lines" in refused(data, tmp_path / "out")
    program.write_text("#!/bin/bash\necho it broke; exit 3\n")
    assert "status 3: it broke" in refused(data, tmp_path / "out", error=ChildProcessError)
    program.unlink()
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert "pip install" in refused(data, tmp_path / "out")
    for path in list(data.glob("train.en-de.*")):
        path.with_name(path.name.replace("train", "train1")).write_bytes(path.read_bytes())
    assert "train, train1" in refused(data, tmp_path / "out")
    (data / "text.json").unlink()
    assert "no text.json" in refused(data, tmp_path / "out")
