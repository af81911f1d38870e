"""benchmarks/harness.py: what all benchmarks refuse before they measure anything."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import commands
import pytest

from benchmarks import decoding, figures, length, long_inputs, ops, speed_table

ALL = [decoding, length, long_inputs, ops]
NUMBERS = [*((script, "--repeats") for script in ALL), *((script, "--threads") for script in ALL)]
NUMBERS += [(length, "--lengths"), (length, "--batch"), (long_inputs, "--lengths"), (ops, "--heads")]
NUMBERS += [(decoding, "--batches"), (decoding, "--iterations"), (decoding, "--layers")]


#: What is wrong with the file of another benchmark.
NOT_THEIRS = {
    figures: "it is of no benchmark that has a picture",
    speed_table: "the file is not of benchmarks/decoding.py",
}


def refused(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> str:
    """The last line that it prints."""
    with pytest.raises(SystemExit) as stopped:
        commands.call(script, monkeypatch, *words)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("script", "option"), NUMBERS)
def test_numbers_from_one(
    script: ModuleType, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(script, monkeypatch, capsys, option, 0)
    assert message.endswith(f"argument {option}: '0': a number from 1 is needed")


@pytest.mark.parametrize("script", [decoding, length, long_inputs])
def test_heads_that_do_not_divide(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(script, monkeypatch, capsys, "--embed-dim", 16, "--heads", 3)
    assert message.endswith("the heads must divide the dimension")


@pytest.mark.parametrize("option", ["--out", "--plot"])
@pytest.mark.parametrize("script", ALL)
def test_folders_that_do_not_exist(
    script: ModuleType, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(script, monkeypatch, capsys, option, "none/file.svg")
    assert message.endswith(f"{option} none/file.svg: there is no folder none")


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "No such file or directory"), ("{", "it is no JSON"), ("[]", "it is of no benchmark"), ("{}", "")],
)
@pytest.mark.parametrize("script", [figures, speed_table])
def test_files_without_numbers(
    script: ModuleType,
    text: str | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "numbers.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    message = refused(script, monkeypatch, capsys, path, *["prefix"] * (script is figures))
    assert message.endswith(f"{path}: {reason}" if reason else NOT_THEIRS[script])


@pytest.mark.parametrize("script", ALL)
def test_pictures_are_svg(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--plot plot.png" in refused(script, monkeypatch, capsys, "--plot", "plot.png")
