"""A whole process of a system of benchmarks/line_systems.py: lines in, translations out, and what it took."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amlp_fairseq.evaluation.decoding_times import Row
from benchmarks import quiet
from benchmarks.efficiency_tables import LATENCY, THROUGHPUT
from benchmarks.line_systems import LineSystem, Setting


class Failed(Exception):
    """A process that did not translate."""


@dataclass
class Job:
    """A program with a model and a setting, and the results of its runs.

    Attributes:
        runs: reports of run_process.py, with ``others``, see ``quiet.Timing``.
        one_line: seconds of processes with one line.
        answers: for each run the ms of each line, where they come one by one.
        outputs: the translations of the last run.
    """

    system: str
    model: str
    program: LineSystem
    setting: Setting
    runs: list[dict[str, float]] = field(default_factory=list)
    one_line: list[float] = field(default_factory=list)
    answers: list[list[float]] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    @property
    def facts(self) -> Row:
        setting, number = self.setting, self.setting.number
        return {
            "mode": LATENCY if setting.batch is None else THROUGHPUT,
            "system": self.system,
            "model": self.model,
            "precision": setting.precision,
            "decoding": f"{number} iterations" if self.program.iterative else f"beam {number}",
            "cores": setting.cores,
            "batch_tokens": setting.batch,
            "workers": setting.workers,
        }

    def __str__(self) -> str:
        return " ".join(
            f"{value}" if isinstance(value, str) else f"{name} {value}" for name, value in self.facts.items()
        )


@contextmanager
def process(job: Job, cpus: list[int], report: Path, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The job's process, and all that it starts, which end with the block."""
    threads = str(len(cpus) // job.setting.workers)
    changes = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    if job.setting.batch is None:
        changes["PYTHONUNBUFFERED"] = "1"
    pinned = [sys.executable, "-S", str(Path(__file__).with_name("run_process.py"))]
    command = [*pinned, str(report), ",".join(map(str, cpus)), *job.program.command(job.setting)]
    with subprocess.Popen(command, env={**os.environ, **changes}, start_new_session=True, **streams) as child:
        try:
            yield child
            child.communicate()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def answers(job: Job, child: subprocess.Popen[bytes], lines: list[str]) -> Iterator[tuple[str, float]]:
    """Give a process one line after the other: its translations, and how many ms each took; fewer than there are lines
    if it ends."""
    assert child.stdin is not None
    assert child.stdout is not None
    for line in lines:
        start = time.perf_counter()
        child.stdin.write(f"{line}\n".encode())
        child.stdin.flush()
        translations = (job.program.translation(output) for output in map(decoded, child.stdout))
        text = next((text for text in translations if text is not None), None)
        if text is None:
            return
        yield text, 1000 * (time.perf_counter() - start)


def decoded(line: bytes) -> str:
    return line.decode("utf-8").removesuffix("\n")


def run(job: Job, lines: list[str], folder: Path) -> tuple[dict[str, float], list[str], list[float]]:
    """A whole process: its report, its translations, and the ms of each where it gets one line at a time.

    Raises:
        Failed: if it ends with another status than 0, or does not write a translation for each line.
    """
    source, output, errors, report = (folder / name for name in ("in", "out", "errors", "report"))
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    report.unlink(missing_ok=True)
    cpus = sorted(os.sched_getaffinity(0))[: job.setting.cores]
    start, busy, ms = time.perf_counter(), quiet.busy_seconds(cpus), []
    with errors.open("w") as stderr, output.open("w") as stdout, source.open() as stdin:
        if job.setting.batch is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr}
            outputs = []
            with process(job, cpus, report, **pipes) as child, suppress(BrokenPipeError):
                for text, duration in answers(job, child, lines):
                    outputs.append(text)
                    ms.append(duration)
        else:
            with process(job, cpus, report, stdin=stdin, stdout=stdout, stderr=stderr):
                pass
            with output.open("rb") as written:
                outputs = [text for text in map(job.program.translation, map(decoded, written)) if text is not None]
    window, busy = time.perf_counter() - start, quiet.busy_seconds(cpus) - busy
    last = (errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it printed no error"])[-1]
    numbers: dict[str, float] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {"status": -1}
    if numbers["status"] != 0:
        raise Failed(f"status {numbers['status']}: {last}")
    if len(outputs) != len(lines):
        raise Failed(f"{len(outputs)} translations of {len(lines)} lines: {last}")
    numbers["others"] = (busy - numbers["cpu_seconds"]) * numbers["seconds"] / window
    return numbers, outputs, ms
