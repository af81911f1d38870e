"""What pages tell users to type, typed literally."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from itertools import groupby
from pathlib import Path

import commands
import pytest

from amlp_fairseq import Translator
from amlp_fairseq.training.results import read_results


def blocks(page: str, language: str = "") -> list[str]:
    """The code blocks of a page in a language; those of commands name none."""
    text = (commands.ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\S*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


def lines(*texts: str) -> list[str]:
    """Command lines, each on one line."""
    return "".join(texts).replace("\\\n", " ").splitlines()


def words(line: str) -> set[str]:
    """What a command line has, whatever the scale, the system, and the files of standard input and output."""
    return set(re.sub(r"transformer|ibdecoder", "SYSTEM", re.sub(r"[<>] \S+|--scale \S+", "", line)).split())


def typed(line: str, folder: Path) -> str:
    """What a command line of a page prints in a folder; ``amlp-fairseq`` is forked, which takes no start of Python."""
    before, _, line = line.rpartition("| ")
    given = shlex.split(line)
    if given[0] != "amlp-fairseq":
        return subprocess.run(["bash", "-c", line], cwd=folder, check=True, capture_output=True, text=True).stdout
    files = {"<": Path(os.devnull), ">": folder / "printed"}
    if before:
        files["<"] = folder / "piped"
        typed(f"{before} > piped", folder)
    for sign in set(files).intersection(given):
        at = given.index(sign)
        files[sign] = folder / given[at + 1]
        del given[at : at + 2]
    (folder / "printed").write_text("", encoding="utf-8")
    arguments = {"source": files["<"], "output": files[">"], "errors": folder / "errors"}
    child = commands.start("amlp_fairseq.cli.main", *given[1:], cwd=folder, **arguments)
    child.join()
    assert child.exitcode == 0, (folder / "errors").read_text(encoding="utf-8")
    return (folder / "printed").read_text(encoding="utf-8")


def test_your_own_corpus(tmp_path: Path) -> None:
    """examples/own_corpus: from an empty folder to scores and translations."""
    of_page = lines(*blocks("examples/own_corpus/README.md"))
    for ours, group in groupby(of_page, lambda line: line.startswith("amlp-fairseq ")):
        for line in group if ours else ["\n".join(["set -euo pipefail", *group])]:
            typed(line, tmp_path)
    begin = " --finetune-from-model transformer/average.pt --dropout 0.1 --attention-dropout 0.0"
    for row, distilled, more in (("transformer", False, ""), ("ibdecoder", True, begin)):
        results = read_results(tmp_path / row / "results.jsonl")
        assert [line["decoding"] for line in results] == ["beam 4", "greedy"]
        for line in results:
            assert (line["system"], line["distilled"], line["sentences"]) == (row, distilled, 20)
            assert (line["data"], line["scale"]) == ("data", "embedded")
            assert line["training_options"] == f"--max-update 20{more}"
        translations = (tmp_path / row / "generated.test.beam-4.hyp").read_text(encoding="utf-8")
        assert translations.count("\n") == 20
    translated = (tmp_path / "translated.txt").read_text(encoding="utf-8").splitlines()
    assert translated == Translator(tmp_path / "en-de").translate(
        (tmp_path / "test.en").read_text(encoding="utf-8").splitlines()
    )


def test_readme_has_the_commands_of_your_own_corpus() -> None:
    """With other files and scales, and without what makes the sample small."""
    tried = [words(line) for block in blocks("examples/own_corpus/README.md") for line in lines(block)]
    shown = [line for block in blocks("README.md") for line in lines(block) if line.startswith("amlp-fairseq")]
    shown = [line for line in shown if "model.pt" not in line]  # fairseq's
    assert len(shown) == 8
    for line in shown:
        assert any(words(line) <= of_page for of_page in tried), line


@pytest.mark.skipif(not (commands.ROOT / "examples/models/cmlmc").exists(), reason="examples/models has not been made")
def test_first_translation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/first-translation.md and the README: every way gives the same translation."""
    (tmp_path / "examples").symlink_to(commands.ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    text = typed(blocks("README.md")[1], tmp_path)
    assert re.fullmatch(r"\S.*\n", text)
    for line in lines(*blocks("docs/first-translation.md")):
        assert typed(line, tmp_path) in ("", text, "<p>Sie <b>schläft</b> ein.</p>\n")
    [answer] = (tmp_path / "text.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(answer)["text"] + "\n" == text
    for name in ("text.de", "text.cmlmc.de"):
        assert re.fullmatch(r"\S.*\n", (tmp_path / name).read_text(encoding="utf-8"))
    printed = (tmp_path / "text.out").read_text(encoding="utf-8")
    assert " " in commands.lines(printed, "D")[0][1]
    capsys.readouterr()
    for page in ("README.md", "docs/first-translation.md"):
        for block in blocks(page, "python"):
            exec(block, {})
            assert text.strip() in capsys.readouterr().out
