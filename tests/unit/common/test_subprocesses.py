"""How far processes of fairseq-generate are, from what they have written."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.logging import progress_bar as stock

from amlp_fairseq.common import subprocesses
from amlp_fairseq.compat import progress_bar


def test_sentences_of_a_growing_file(tmp_path: Path) -> None:
    """A line that is not whole is counted when it is, and no other line is."""
    output = tmp_path / "shard-0.txt.part"
    assert subprocesses.count(output, 0) == (0, 0)
    output.write_text("S-3\ta b\nH-3\t-1\tS-9\nD-3\t-1\tx\nS-")
    end, found = subprocesses.count(output, 0)
    assert (end, found) == (len("S-3\ta b\nH-3\t-1\tS-9\nD-3\t-1\tx\n"), 1)
    with output.open("a") as file:
        file.write("1\tü\nS-2\tc\n")
    assert subprocesses.count(output, end) == (output.stat().st_size, 2)
    output.rename(tmp_path / "shard-0.txt")  # when it is whole
    assert subprocesses.count(output, end) == ((tmp_path / "shard-0.txt").stat().st_size, 2)


def test_a_line_in_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all files together."""
    paths = [tmp_path / "a", tmp_path / "b"]
    rounds = iter([False, False, True])
    said: list[str] = []

    class Ended:
        """An event that is set in the third second; a file grows in each."""

        def wait(self, seconds: float) -> bool:
            said.append(capsys.readouterr().err)
            for path in paths:
                with path.open("a") as file:
                    file.write("S-1\ta\n")
            return next(rounds)

        def set(self) -> None: ...

    thread = SimpleNamespace(Event=Ended)
    monkeypatch.setattr(subprocesses, "SILENCE", 0)
    started: list[object] = []
    thread.Thread = lambda target, daemon: SimpleNamespace(start=lambda: started.append(target()), join=lambda: None)
    monkeypatch.setattr(subprocesses, "threading", thread)
    with subprocesses.watching("distill", paths, 8):
        pass
    assert started
    pattern = r"distill: (\d) of 8 sentences, [\d.]+ sentences/s, [\d:]+ left\n"
    assert [re.fullmatch(pattern, line)[1] for line in said[1:]] == ["2", "4"]  # type: ignore[index]


def test_slow_batches_are_told_of_every_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many batches --log-interval says; and fairseq's bars are back behind the command."""
    before = stock.SimpleProgressBar, stock.TqdmProgressBar
    clock = iter([0.0, 0.0, 30.0, 70.0, 80.0, 140.0, 150.0])  # at first of updates, too
    monkeypatch.setattr(progress_bar, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with progress_bar.shown(), caplog.at_level("INFO"):
        bar = stock.progress_bar([{"nsentences": 2}] * 5, log_format="simple", log_interval=100)
        assert len(list(bar)) == 5
    assert [message.split(" sentences,")[0] for message in caplog.messages] == ["4", "8"]
    assert (stock.SimpleProgressBar, stock.TqdmProgressBar) == before
