"""Many lines through one process: its memory stays flat, and none is lost."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from small_systems import WORDS, System
from test_model_folders import folder_of


def done(output: Path, command: str) -> int:
    """The number of lines of which the translation has been printed."""
    if not output.exists():
        return 0
    if command == "translate":
        return output.read_bytes().count(b"\n")
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - 4096))
        found = re.findall(rb"\nH-(\d+)\t", file.read())
    return int(found[-1]) + 1 if found else 0


def peak(pid: int) -> int:
    """The most memory that a process has had, in KiB."""
    return int(re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())[0])


@pytest.mark.parametrize(
    ("row", "command", "count"),
    [
        *(
            pytest.param(row, command, 2_000, id=f"bounded-{row}-{command}")
            for row, command in (("ibdecoder", "interactive"), ("ibdecoder", "translate"), ("cmlmc", "translate"))
        ),
        *(
            pytest.param(row, command, 100_000, id=f"long-{row}-{command}", marks=pytest.mark.long)
            for row in ("ibdecoder", "cmlmc")
            for command in ("interactive", "translate")
        ),
    ],
)
def test_memory_stays_flat(row: str, command: str, count: int, system: Callable[[str], System], tmp_path: Path) -> None:
    rng, text, output = random.Random(row), tmp_path / "text", tmp_path / "output"
    if (row, command) == ("ibdecoder", "translate"):
        count *= 20  # by the engine: or it has ended before its memory is looked at
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) for _ in range(count)]
    text.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    words = ["--model", folder_of(system(row), tmp_path / "model"), "--buffer-size", "100"]
    if command == "interactive":
        words = [*system(row).options, "--buffer-size", "100", "--batch-size", "50"]
    streams = {"source": text, "output": output, "errors": tmp_path / "errors"}
    child = commands.start("amlp_fairseq.cli.main", command, *words, **streams)
    peaks = []
    try:
        for part in (0.1, 0.9):
            while done(output, command) < part * count:
                assert child.is_alive(), (tmp_path / "errors").read_text(encoding="utf-8")
                time.sleep(0.05)
            peaks.append(peak(child.pid))
        child.join()
    finally:
        child.kill()
    assert child.exitcode == 0
    printed = output.read_text(encoding="utf-8")
    if command == "interactive":
        sources = {number: words for number, (words,) in commands.lines(printed, "S").items()}
        assert sources == dict(enumerate(lines))
        assert list(commands.lines(printed, "H")) == list(range(count))
    else:
        assert printed.count("\n") == count
    print(f"{command}, {row}, {count} lines: at most {peaks[0]} KiB at 10 %, {peaks[1]} KiB at 90 %")  # noqa: T201
    assert peaks[1] <= (1.05 if count == 100_000 else 1.1) * peaks[0]
