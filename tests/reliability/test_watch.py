"""amlp-fairseq watch shows what a model did, for all systems."""

from __future__ import annotations

import math
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from small_systems import SYSTEMS, System
from test_model_folders import folder_of

from amlp_fairseq import Translator
from amlp_fairseq.cli import watch
from amlp_fairseq.translator import steps
from amlp_fairseq.translator.steps import MASK, WRITE

SENTENCE = "w3 w14 w15 w9 w2 w6 w5"


def known(row: str, length: int, call: int) -> list[int]:
    """The places that are written after a call, from the papers' figures."""
    first, last = range(length)[: call * 2], range(length)[::-1][: call * 2]
    if row == "ibdecoder":
        first, last = range(length)[:call], range(length)[::-1][:call]
    elif row == "imdecoder":
        half = (length + 1) // 2
        parts = (range(half), range(half, length))
        return sorted({place for part in parts for place in (*part[:call], *part[::-1][:call])})
    elif row == "ibdecoder_middle_to_side":
        middle = (length + 1) // 2
        first, last = range(middle)[::-1][:call], range(middle, length)[:call]
    elif row == "vanilla_sa_2":
        last = range(0)
    elif row != "ibdecoder_sa":
        first, last = range(length)[:call], range(0)
    return sorted({*first, *last})


@pytest.mark.parametrize("row", SYSTEMS)
def test_steps(row: str, system: Callable[[str], System], tmp_path: Path) -> None:
    folder = folder_of(system(row), tmp_path / "model")
    found = steps.decode(steps.load(folder), SENTENCE)
    expected = Translator(folder).translations([SENTENCE])[0]
    last = found.steps[-1]
    pieces = tuple(word for word in last.words if word != "<s>")  # which texts do not show
    assert (found.text, pieces, found.source) == (expected.text, expected.pieces, expected.source_pieces)
    assert found.steps[-1].call == found.calls
    if "translation" not in system(row).decoding:  # fairseq's search counts those of its longest hypothesis
        assert found.calls == expected.calls
    assert all(value is not None and 0 < value <= 1 for value in last.probabilities)
    if row.startswith("cmlm"):
        refined(found, row)
        mean = sum(math.log(value) for value in last.probabilities if value) / len(last.words)
        assert mean == pytest.approx(expected.score, abs=1e-3)
        return
    for step in found.steps:
        places = known(row, len(last.words), step.call)
        assert [place for place, word in enumerate(step.words) if word is not None] == places
        assert [*step.places] == sorted({*places} - {*known(row, len(last.words), step.call - 1)})
    assert [step.ends for step in found.steps] == [False] * (found.calls - 1) + [True]


def refined(found: steps.Decoding, row: str) -> None:
    """Mask-predict: iteration t of T masks ⌊n (1 - t/T)⌋ words, the least certain ones, and then there are no masks."""
    iterations, before = 10, None
    for step in found.steps:
        if step.kind == MASK:
            assert before is not None
            n, t = len(step.words), step.call - 1
            assert len(step.places) == n * (iterations - t) // iterations
            doubted = [before.probabilities[place] for place in step.places]
            kept = [value for place, value in enumerate(before.probabilities) if place not in step.places]
            assert max(doubted, default=0) <= min(kept, default=1)
            assert [place for place, word in enumerate(step.words) if word is None] == [*step.places]
        else:
            assert None not in step.words
            changed = {place for place, word in enumerate(step.words) if before is None or word != before.words[place]}
            assert {*step.places} == changed
        before = step
    assert row == "cmlm" or sum(step.kind == WRITE for step in found.steps) == found.calls


@pytest.mark.parametrize("row", ["ibdecoder_sa", "aan", "amlp_transformer"])
def test_attention(row: str, system: Callable[[str], System], tmp_path: Path) -> None:
    folder = folder_of(system(row), tmp_path / "model")
    found = steps.decode(steps.load(folder), SENTENCE)
    assert found.attention is not None
    assert len(found.attention) == len(found.directions) == len(found.steps[-1].words)
    for weights in found.attention:
        assert len(weights) == len(found.source) + 1
        assert sum(weights) == pytest.approx(1, abs=1e-4)
    if row == "ibdecoder_sa":  # the hard alignment of fairseq-generate
        pairs = Translator(folder, print_alignment="hard").translations([SENTENCE])[0].alignment
        assert len(pairs) == len(found.attention)
        for source, target in pairs:
            assert max(range(len(found.source)), key=found.attention[target].__getitem__) == source


def test_probabilities_are_those_of_fairseq_generate(
    system: Callable[[str], System], data: Path, tmp_path: Path
) -> None:
    trained = system("imdecoder")
    output = commands.run("fairseq_cli.generate", *trained.options)
    translator = steps.load(folder_of(trained, tmp_path / "model"))
    sources = (data.parent / "raw/test.en").read_text(encoding="utf-8").splitlines()
    for number in (0, 5):
        bits = [float(value) for value in commands.lines(output, "P")[number][0].split()]
        found = steps.decode(translator, sources[number])
        assert found.steps[-1].probabilities == pytest.approx([2**value for value in bits[:-1]], abs=1e-3)


def test_in_a_file(
    system: Callable[[str], System], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without colours: every call of both models, and at the end the translation."""
    folders = [folder_of(system(row), tmp_path / row) for row in ("ibdecoder", "cmlmc")]
    capsys.readouterr()
    commands.call(watch, monkeypatch, SENTENCE, "--model", folders[0], "--model", folders[1])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    expected = [Translator(folder).translations([SENTENCE])[0] for folder in folders]
    for folder, translation in zip(folders, expected, strict=True):
        assert f"  {translation.calls} decoder calls: {translation.text}\n" in printed
        assert f"{folder.name}  " in printed
    first = printed.splitlines()[1].split()
    assert first[0] == f"[{expected[0].pieces[0]}]"
    assert first[-1] == f"[{expected[0].pieces[-1]}]"
    assert set(first[1:-1]) == {"···"}
    assert "▒▒▒" in printed

    page = tmp_path / "page.html"
    commands.call(watch, monkeypatch, SENTENCE, "--model", folders[0], "--html", page)
    assert capsys.readouterr().out == f"{page}: open it in a browser\n"
    assert expected[0].text in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([" "], "the sentence is empty"),
        (["\udcff\udcfe"], r"argument SENTENCE: '\udcff\udcfe' is not UTF-8"),
        (["w1 " * 13000], "pieces, {folder} reads at most"),
        ([SENTENCE, "--html", "no/page.html"], "--html no/page.html: there is no folder no"),
        ([SENTENCE, "--deduplicate-ngrams=2"], "--deduplicate-ngrams=0 shows them all"),
        (["--beam", "2", SENTENCE], "= between a decoding option and its value"),
        ([SENTENCE, "--delay", "soon"], "--delay: 'soon': a number of seconds"),
        ([SENTENCE, "--model", "."], ". is not the folder of a model"),
    ],
)
def test_mistakes(
    words: list[str],
    message: str,
    system: Callable[[str], System],
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = folder_of(system("ibdecoder"), tmp_path / "model")
    with pytest.raises((SystemExit, ValueError, FileNotFoundError)) as failure:
        commands.call(watch, monkeypatch, *words, "--model", folder)
    printed = capsys.readouterr().err.splitlines()[-1:]
    assert message.format(folder=folder) in " ".join([str(failure.value), *printed])


@pytest.mark.parametrize("interrupted", [False, True])
def test_on_a_terminal(interrupted: bool, system: Callable[[str], System], tmp_path: Path) -> None:
    """In colour; the cursor comes back, also after Ctrl-C, which shells see as such."""
    folder = folder_of(system("ibdecoder"), tmp_path / "model")
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "amlp_fairseq", "watch", "--model", folder, SENTENCE]
    command += ["--delay", "3600" if interrupted else "0"]
    environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(list(map(str, command)), stdout=slave, stderr=slave, env=environment) as child:
        os.close(slave)
        printed = b""
        while b"reads the source" not in printed:
            printed += os.read(master, 4096)
        if interrupted:
            child.send_signal(signal.SIGINT)
        try:
            while chunk := os.read(master, 4096):
                printed += chunk
        except OSError:  # Linux: the terminal has no writer any more
            pass
        status = child.wait()
    os.close(master)
    assert status == (-signal.SIGINT if interrupted else 0)
    assert printed.count(b"\x1b[?25l") == printed.count(b"\x1b[?25h") == 1
    assert (b"\x1b[1;7;36m" in printed) != interrupted  # a new word of the first direction
    assert (b"watch: interrupted" in printed) == interrupted
    assert b"Traceback" not in printed
