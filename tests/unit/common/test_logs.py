"""What amlp-fairseq prints beside results: nothing that only libraries care about, progress, and whole lines."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import re
import select
import struct
import termios
import warnings
from pathlib import Path

import commands
import pytest

from amlp_fairseq.common import logs
from amlp_fairseq.compat import progress_bar

pytestmark = pytest.mark.slow

CLI = "amlp_fairseq.cli.main"
WORDS = "Haus Baum See Weg Berg".split()
WORKERS = ["--num-workers", 0]  # a worker of a forked process says what it imports
TRAINING = "--task translation_interleaved --arch ibdecoder_tiny --criterion cross_entropy --optimizer adam --lr 0.001"
OPTIONS = [
    *"--dropout 0 --attention-dropout 0 --activation-dropout 0".split(),  # amlp-fairseq train samples it in its own way
    *TRAINING.split(),
    *"--share-all-embeddings --batch-size 10 --cpu --seed 1".split(),
    *WORKERS,
    "--log-interval",
    2,
]
#: What fairseq's programs print at every start, and no user can act on.
NOISE = re.compile(r"hydra|config' is validated|version_base|strict flag|pin_memory|torch\.cuda\.amp|tensorboardX")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs of 3 to 6 words: 40, 6 and 7."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "raw").mkdir()
    for split, count in (("train", 40), ("valid", 6), ("test", 7)):
        rows = "".join(" ".join(WORDS[(i * j + j) % 5] for j in range(3 + i % 4)) + "\n" for i in range(count))
        for language in ("en", "de"):
            (folder / f"raw/{split}.{language}").write_text(rows, encoding="utf-8")
    commands.preprocess(folder / "raw", folder / "data")
    out, errors = both(folder, CLI, "train", folder / "data", *OPTIONS, "--save-dir", folder / "ck", "--max-update", 6)
    (folder / "out").write_text(out, encoding="utf-8")
    (folder / "errors").write_text(errors, encoding="utf-8")
    return folder


def both(tmp_path: Path, command: str, *words: object) -> tuple[str, str]:
    """What a command prints, and what it says on standard error."""
    output, errors = tmp_path / "output", tmp_path / "stderr"
    for path in (output, errors):
        path.unlink(missing_ok=True)
    child = commands.start(command, *words, output=output, errors=errors)
    child.join()
    printed, said = (path.read_text(encoding="utf-8") for path in (output, errors))
    assert child.exitcode == 0, printed + said
    return printed, said


def decoding(folder: Path) -> list[object]:
    """Three batches: 3, 3 and 1 sentences."""
    words = [folder / "data", "--task", "translation_interleaved", "--path", folder / "ck/checkpoint_last.pt", "--cpu"]
    return [*words, *WORKERS, "--batch-size", 3, "--required-batch-size-multiple", 1, "--print-step"]


def results(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if re.match("[STHDPI]-|Generate ", line)]


def test_training_in_a_log(folder: Path, tmp_path: Path) -> None:
    """Updates, how fast, and the time left; the loss is the one that fairseq-train logs."""
    printed = (folder / "out").read_text(encoding="utf-8")
    lines = printed.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.endswith("| epoch 001: begins with update 1 of 6")]
    assert not [line for line in lines[:begin] if "updates/s" in line]  # it is there before anything takes time
    pattern = r"\| train_inner \| epoch 00\d: (\d) of 6 updates, [\d.]+ updates/s, (\d\d:\d\d) left, loss ([\d.]+)$"
    found = re.findall(pattern, printed, flags=re.MULTILINE)
    assert [updates for updates, _, _ in found] == ["2", "4", "6"]
    assert found[-1][1] == "00:00"
    words = [folder / "data", "--user-dir", commands.PLUGIN, *OPTIONS, "--save-dir", tmp_path, "--max-update", 6]
    stock = commands.run("fairseq_cli.train", *words)
    assert [loss for _, _, loss in found] == re.findall(r"train_inner.* loss=([\d.]+),", stock)
    assert re.search(r"\| valid \| epoch 001 \| valid on 'valid' subset \| loss [\d.]+ \|", printed)


def test_a_resumed_training_counts_on(folder: Path, tmp_path: Path) -> None:
    for path in ("checkpoint1.pt", "checkpoint_last.pt"):
        (tmp_path / path).write_bytes((folder / "ck/checkpoint1.pt").read_bytes())
    words = [folder / "data", *OPTIONS, "--save-dir", tmp_path, "--max-epoch", 2]
    printed, _ = both(tmp_path, CLI, "train", *words)
    assert re.findall(r"(\d+) of (\d+) updates", printed) == [("6", "8"), ("8", "8")]


def test_noise_is_gone(folder: Path) -> None:
    printed, said = ((folder / name).read_text(encoding="utf-8") for name in ("out", "errors"))
    assert re.fullmatch("next: amlp-fairseq generate .*\n", said)
    assert not NOISE.search(printed)
    assert "IBDecoderModel(" not in printed
    assert not re.search(
        r"checkpoint\w*\.pt", printed.split("begins with update")[1]
    )  # four lines for each that is saved
    assert max(map(len, printed.splitlines())) < 400


def test_noise_is_there_with_verbose(folder: Path, tmp_path: Path) -> None:
    """Results are the same."""
    printed, said = both(tmp_path, CLI, "--verbose", "generate", *decoding(folder))
    assert "is validated against ConfigStore schema" in said
    assert "pin_memory" in said
    assert max(map(len, said.splitlines())) > 4000
    assert results(printed) == results(both(tmp_path, CLI, "generate", *decoding(folder))[0])


def test_decoding_in_a_log(folder: Path, tmp_path: Path) -> None:
    """Standard output has the results of fairseq-generate and how long they took, standard error the progress."""
    stock = commands.run("fairseq_cli.generate", *decoding(folder), "--user-dir", commands.PLUGIN)
    printed, said = both(tmp_path, CLI, "generate", *decoding(folder), "--log-interval", 1)
    assert results(printed) == results(stock)
    (other,) = set(printed.splitlines()) - set(results(printed))
    assert re.search(r"\| Translated 7 sentences \(\d+ tokens\) in [\d.]+s", other)
    assert re.findall(r"\| (\d) of 7 sentences, [\d.]+ sentences/s, \d\d:\d\d left$", said, re.MULTILINE) == [*"367"]
    assert not NOISE.search(said)
    assert not results(said)


def test_decoding_on_a_terminal(folder: Path) -> None:
    """A bar with the sentences, and no line of the results is torn: they are on the screen as without it."""
    screen = terminal("generate", *decoding(folder))
    assert re.search(r"\b[367]/7 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+ sentences/s\]", screen)
    shown = [rendered(line) for line in screen.replace("\r\n", "\n").split("\n")]
    expected = results(commands.run(CLI, "generate", *decoding(folder)))
    assert [line for line in shown if results(line)] == expected
    assert not [line for line in shown if "sentences/s]" in line]  # it is gone at the end


def test_training_on_a_terminal(folder: Path, tmp_path: Path) -> None:
    screen = terminal("train", folder / "data", *OPTIONS, "--save-dir", tmp_path, "--max-update", 6)
    assert re.search(r"epoch 002: .* 6/6 \[\d\d:\d\d<00:00, +[\d.]+ updates/s, loss=[\d.]+\]", screen)
    shown = [rendered(line) for line in screen.replace("\r\n", "\n").split("\n")]
    assert [line.split(" | ")[3:5] for line in shown if " | train | " in line][-1][0] == "epoch 002"


def terminal(*words: object) -> str:
    """Everything that a command writes to a terminal that is as wide as any line."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 300, 0, 0))
    child = commands.start(CLI, *words, output=Path(os.ttyname(slave)))
    written = b""
    while (ready := select.select([master], [], [], 0.1)[0]) or child.is_alive():
        written += os.read(master, 65536) if ready else b""
    child.join()
    os.close(slave)
    os.close(master)
    text = written.decode("utf-8")
    assert child.exitcode == 0, text
    return text


def rendered(line: str) -> str:
    """What stands in a line of a terminal in the end: a carriage return begins it again."""
    cells: list[str] = []
    for part in re.sub(r"\x1b\[A", "", line).split("\r"):
        cells[: len(part)] = part
    return "".join(cells).rstrip(" ")


def test_what_matters_stays() -> None:
    """The warnings of the plugin, of the user's data, and errors."""
    root = logging.getLogger()
    before = [*root.handlers]
    with warnings.catch_warnings(record=True) as caught, logs.readable("train", False):
        warnings.warn("amlp_fairseq has not been tested with torch 9", stacklevel=1)
        warnings.warn("'pin_memory' argument is set as true but no accelerator is found", stacklevel=1)
        records = [
            root.makeRecord("fairseq", level, "file", 1, message, (), None)
            for level, message in ((logging.WARNING, "2 samples have invalid sizes"), (logging.INFO, {"a": "config"}))
        ]
        handler = root.handlers[0]
        assert [bool(handler.filter(record)) for record in records] == [True, False]
    assert [str(warning.message) for warning in caught] == ["amlp_fairseq has not been tested with torch 9"]
    assert root.handlers == before


def test_verbose_is_for_the_commands_that_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.VERBOSE, raising=False)
    for words in (["--verbose", "evaluate", "a"], ["evaluate", "--verbose", "a"], ["evaluate", "a", "--verbose"]):
        assert logs.take_verbose(words) == (["evaluate", "a"], True)
    with logs.readable("evaluate", True):
        assert logs.take_verbose(["generate"]) == (["generate"], True)
    assert logs.take_verbose(["generate"]) == (["generate"], False)


def test_a_slow_training_has_lines_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first after ten seconds, later ones after a minute without any, however large --log-interval is."""
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    updates = progress_bar.Updates(progress_bar.Training(), False, range(100), 1, None, 1000)
    updates.n = 0
    said = []
    with caplog.at_level("INFO"):
        for number in updates:
            said.append((number, [record.getMessage() for record in caplog.records]))
            caplog.clear()
            now[0] += 4
    found = [number for number, messages in said if messages]
    assert found == [0, 3, 18, 33, 48, 63, 78, 93]  # 12 seconds after the beginning, then 60 after each
    assert "begins with update 1" in said[0][1][0]
    assert "3 updates" in said[3][1][0]
