"""Commands that are interrupted, lose their reader or fill the disk: whole lines, a clear status, no traceback."""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import commands
import pytest
from small_systems import TINY, WORDS, System, evaluable
from test_model_folders import folder_of

from amlp_fairseq.training.results import append_results, read_results

CLI = "amlp_fairseq.cli.main"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Starts a command, which does not outlive the test."""
    started: list[Any] = []

    def start_command(*arguments: object, **files: Path) -> Any:
        started.append(commands.start(CLI, *arguments, **files))
        return started[-1]

    yield start_command
    for child in started:
        child.kill()
        child.join()


@pytest.fixture
def words(
    request: pytest.FixtureRequest, system: Callable[[str], System], data: Path, tmp_path: Path
) -> Callable[[str], list[Any]]:
    """The command line of a command that takes a while."""

    def words_of(command: str) -> list[Any]:
        if command == "train":
            row = ["--corpus", "embedded", "--row", "ibdecoder", "--scale", "embedded", *TINY, "--log-interval", "1"]
            return ["train", data, *row, "--save-dir", tmp_path / "trained", "--max-update", "100000"]
        trained = system("ibdecoder")
        if command == "evaluate":
            return [
                "evaluate",
                *evaluable(trained, data, tmp_path),
                "--cpu",
                "--min-len",
                "3990",
                "--max-len-b",
                "4000",
            ]
        if command == "generate":
            return ["generate", *trained.options, "--gen-subset", "train", "--batch-size", "2", "--max-len-b", "80"]
        rng, text = random.Random(1), tmp_path / "text"
        text.write_text("".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 9))) + "\n" for _ in range(300)))
        return ["interactive", *trained.options, "--input", text, "--buffer-size", "4", "--batch-size", "4"]

    return words_of


def program(arguments: list[Any]) -> dict[str, Any]:
    """What subprocess takes to run amlp-fairseq, not in the tests' forks."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "amlp_fairseq", *map(str, arguments)]
    return {"args": command, "env": {**environment, "OMP_NUM_THREADS": "1"}}


def translations(output: str) -> list[str]:
    """The lines that are the same in every run."""
    return [line for line in output.splitlines(keepends=True) if re.match("[SHDP]-", line)]


def wait_until(condition: Callable[[], Any], child: Any) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert child.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def assert_whole(command: str, written: Path, whole: str) -> None:
    """What was written is a part of the whole output that ends with a line, and is no traceback."""
    printed = written.read_text(encoding="utf-8")
    assert "Traceback" not in printed
    assert "Error" not in printed
    assert printed.endswith("\n")
    found = translations(printed)
    assert found == translations(whole)[: len(found)]
    assert found or command == "train"


@pytest.mark.parametrize(
    ("command", "number", "times"),
    [
        ("interactive", signal.SIGINT, 1),
        ("generate", signal.SIGTERM, 1),
        ("train", signal.SIGINT, 1),
        *(
            pytest.param(command, number, 25, marks=pytest.mark.long, id=f"{command}-{number.name}-long")
            for command in ("interactive", "generate", "train")
            for number in SIGNALS
        ),
    ],
)
def test_signals(
    command: str,
    number: signal.Signals,
    times: int,
    words: Callable[[str], list[Any]],
    start: Callable[..., Any],
    tmp_path: Path,
) -> None:
    arguments, rng = words(command), random.Random(command)
    whole = "" if command == "train" else commands.run(CLI, *arguments)
    for part in range(times):
        output = tmp_path / f"output-{part}"
        child = start(*arguments, output=output)
        begun = " updates, " if command == "train" else "\nP-"
        wait_until(lambda: output.exists() and begun in output.read_text(encoding="utf-8"), child)  # noqa: B023
        time.sleep(rng.uniform(0, 0.1))
        os.kill(child.pid, number)
        child.join()
        assert child.exitcode == -number
        assert_whole(command, output, whole)
        last = output.read_text(encoding="utf-8").splitlines()[-1]
        assert (last == f"amlp-fairseq {command}: interrupted") == (number == signal.SIGINT)


@pytest.mark.parametrize(
    "command", ["fairseq_cli.interactive", pytest.param(f"{CLI} interactive", marks=pytest.mark.long)]
)
def test_translations_leave_when_they_are_made(command: str, system: Callable[[str], System], tmp_path: Path) -> None:
    """To a file, line by line: what kills the process later, be it SIGKILL, takes none of them away."""
    source, output = tmp_path / "source", tmp_path / "output"
    os.mkfifo(source)
    words = [*command.split()[1:], *system("ibdecoder").options]
    child = commands.start(command.split()[0], *words, source=source, output=output)
    try:
        with source.open("w", encoding="utf-8") as lines:
            for number in range(3):
                print("w1 w2 w3", file=lines, flush=True)
                wait_until(lambda: size(output) and f"\nP-{number}\t" in output.read_text(encoding="utf-8"), child)  # noqa: B023
            child.kill()
    finally:
        child.kill()
        child.join()
    assert output.read_text(encoding="utf-8").endswith("\n")
    assert len(translations(output.read_text(encoding="utf-8"))) == 4 * 3


def children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return [int(word) for word in found.split()]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGINT, signal.SIGHUP))]
)
def test_an_evaluation_takes_its_programs_along(
    number: signal.Signals, words: Callable[[str], list[Any]], start: Callable[..., Any], tmp_path: Path
) -> None:
    child = start(*words("evaluate"), output=tmp_path / "output")
    (generated,) = [tmp_path / f"checkpoints/generated.test.{name}.txt" for name in ("beam-4",)]
    wait_until(lambda: size(generated), child)
    (program,) = children(child.pid)
    os.kill(child.pid, number)
    child.join()
    assert child.exitcode == -number
    printed = (tmp_path / "output").read_text(encoding="utf-8")
    assert "Traceback" not in printed
    assert printed.endswith("\n")
    deadline = time.monotonic() + 30
    while Path(f"/proc/{program}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{program}").exists()
    assert not (tmp_path / "checkpoints/results.jsonl").exists()


@pytest.mark.parametrize(
    "command",
    ["train", *(pytest.param(each, marks=pytest.mark.long) for each in ("interactive", "generate"))],
)
def test_a_closed_pipe(command: str, words: Callable[[str], list[Any]], tmp_path: Path) -> None:
    """Of a process of its own: fairseq's logging is that of a program."""
    with (tmp_path / "errors").open("wb") as errors:
        child = subprocess.Popen(**program(words(command)), stdout=subprocess.PIPE, stderr=errors)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(300) == -signal.SIGPIPE
    finally:
        child.kill()
    said = (tmp_path / "errors").read_text(encoding="utf-8")
    assert "Traceback" not in said
    assert "Error" not in said


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_under_the_output(
    words: Callable[[str], list[Any]], start: Callable[..., Any], full: Path, tmp_path: Path
) -> None:
    arguments = words("interactive")
    whole = commands.run(CLI, *arguments)
    child = start(*arguments, output=full / "output", errors=tmp_path / "errors")
    child.join()
    assert child.exitcode == 1
    assert size(full / "output") > 30_000
    written = (full / "output").read_bytes()
    (tmp_path / "written").write_bytes(written[: written.rfind(b"\n") + 1])
    assert_whole("interactive", tmp_path / "written", whole)
    assert (tmp_path / "errors").read_text(encoding="utf-8").splitlines()[-1] == (
        f"amlp-fairseq interactive: {os.strerror(errno.ENOSPC)}"
    )


def test_a_full_disk_under_the_file_of_translate(system: Callable[[str], System], full: Path, tmp_path: Path) -> None:
    source, output, rng = tmp_path / "source", full / "output", random.Random(1)
    source.write_text("".join(" ".join(rng.choices(WORDS, k=9)) + "\n" for _ in range(200)), encoding="utf-8")
    folder = folder_of(system("ibdecoder"), tmp_path / "model")
    words = ["translate", "--model", folder, "--jsonl", "--input", source]
    commands.run(CLI, *words, "--output", tmp_path / "whole")
    printed = commands.run(CLI, *words, "--output", output, check=False)
    assert printed.splitlines()[-1] == f"amlp-fairseq translate: {os.strerror(errno.ENOSPC)}: {output}"
    assert "Traceback" not in printed
    found = output.read_bytes()
    assert len(found) > 30_000
    assert (tmp_path / "whole").read_bytes().startswith(found)


def test_no_output_at_all() -> None:
    """Python itself, when it ends, does not find anything left to write."""
    with open("/dev/full", "wb") as output:
        done = subprocess.run(**program(["--help"]), stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"amlp-fairseq --help: {os.strerror(errno.ENOSPC)}"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_full_disk_under_the_checkpoints(
    words: Callable[[str], list[Any]], start: Callable[..., Any], tmp_path: Path
) -> None:
    """By a limit of the size of files; fairseq tries three times."""
    arguments, output = [*words("train"), "--save-interval-updates", "1", "--log-interval", "1000"], tmp_path / "output"
    child = start(*arguments, output=output)
    resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))
    child.join()
    assert child.exitcode == 1
    assert_whole("train", output, "")
    last = output.read_text(encoding="utf-8").splitlines()[-1]
    assert last == f"amlp-fairseq train: {os.strerror(errno.EFBIG)}"
    assert not list((tmp_path / "trained").glob("checkpoint*.pt"))


@pytest.mark.long
def test_a_full_disk_under_an_evaluation(
    words: Callable[[str], list[Any]], start: Callable[..., Any], full: Path, tmp_path: Path
) -> None:
    arguments = [*words("evaluate"), "--min-len", "1", "--max-len-b", "9"]
    (full / "fill").write_bytes(b"x" * 32_768)
    child = start(*arguments, "--results", full / "results", output=tmp_path / "output")
    child.join()
    assert child.exitcode == 1
    printed = (tmp_path / "output").read_text(encoding="utf-8")
    assert "Traceback" not in printed
    assert f"amlp-fairseq evaluate: {os.strerror(errno.ENOSPC)}: {full}" in printed
    assert '"bleu": ' in printed  # no result is lost


def test_results_that_do_not_fit_leave_those_before_them(full: Path) -> None:
    path = full / "results.jsonl"
    line = {"name": "x" * 900, "subset": "test"}
    append_results(path, [line])
    written = path.read_bytes()
    with pytest.raises(OSError, match=re.escape(str(path))) as error:
        append_results(path, [line] * 99)
    assert error.value.errno == errno.ENOSPC
    assert path.read_bytes() == written
    append_results(path, [line])
    assert path.read_bytes() == written * 2


def append_for_ever(path: Path, name: str) -> None:
    for number in range(10**9):
        append_results(path, [{"name": name, "number": number, "subset": "test", "x": "x" * 9000}] * 3)


def test_results_of_evaluations_that_are_killed(tmp_path: Path) -> None:
    path, rng = tmp_path / "results.jsonl", random.Random(1)
    for part in range(4):
        writers = [commands.forks.Process(target=append_for_ever, args=(path, f"{part}-{i}")) for i in range(2)]
        for writer in writers:
            writer.start()
        enough = size(path) + (1 << 18)
        wait_until(lambda: size(path) >= enough, writers[0])  # noqa: B023
        time.sleep(rng.uniform(0, 0.05))
        for writer in writers:
            writer.kill()
            writer.join()
    lines = [(line["name"], line["number"]) for line in read_results(path)]
    for name in {name for name, _ in lines}:  # a killed process may have written some of its last three lines
        numbers = [number for other, number in lines if other == name]
        assert numbers == [position // 3 for position in range(len(numbers))]
    assert len({name.split("-")[0] for name, _ in lines}) == 4


def test_a_result_behind_half_a_line(tmp_path: Path) -> None:
    """What a killed process may leave is no line; what somebody has edited is one."""
    path = tmp_path / "results.jsonl"
    path.write_text('{"subset": "test"}\n{"subset": "te', encoding="utf-8")
    assert len(read_results(path)) == 1
    append_results(path, [{"subset": "valid"}])
    assert path.read_text(encoding="utf-8") == '{"subset": "test"}\n{"subset": "valid"}\n'
    path.write_text('{"subset": "test"}', encoding="utf-8")
    append_results(path, [{"subset": "valid"}])
    assert path.read_text(encoding="utf-8") == '{"subset": "test"}\n{"subset": "valid"}\n'
    path.write_text('{"subset": "te\n{"subset": "valid"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"{path}, line 1 is damaged")):
        read_results(path)
