"""Memory of long runs of translate, serve, distill and evaluate on a CPU: level, or growing.

    python -m benchmarks.decoding_memory DATA [--runs NAME …] [--types TYPE …] [--lines 4000] [--work DIR] [--out FILE]

DATA is the folder of examples/models/corpus.sh, from whose models and text all is made. A run is one command in one
thread with one --decode-dtype: translate of as many lines of 1 to 40 words, by three models; serve, which gets them in
requests of 1 to 8; distill and evaluate of as many sentences. Each half second the memory of the process is written
down (VmRSS, and VmHWM: at most so far), of several that of the one that has worked most. It is level if the peak at the
end is at most 1.1 times the one after a quarter of its CPU time, the 5 seconds in which it starts left out. What is in
--work already is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fairseq.data import data_utils

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.compat.internals import indexed_dataset
from amlp_fairseq.training.environment import environment
from benchmarks.harness import MIB, add_files, check_files, finish, target
from benchmarks.sampled_training import bytes_of_process
from benchmarks.tables import Column, table
from benchmarks.training_memory import child_environment

MODELS = Path(__file__).parent.parent / "examples/models"
TRANSLATE = ("ar", "ibdecoder", "cmlmc")
RUNS = (*(f"translate {model}" for model in TRANSLATE), "serve", "distill", "evaluate")
TYPES = ("bfloat16", "int8", "float32")
#: The most that a peak at the end may be of the one after a quarter.
LEVEL = 1.1
#: CPU seconds that a command takes to import PyTorch and fairseq and to load a model.
START = 5
#: Samples of a run that are stored.
STORED = 40
#: Seconds between two samples.
PAUSE = 0.5


def varied(text: list[str], count: int) -> list[str]:
    """Lines, of which every other one is a sentence of a text, and the rest are words of it in any order."""
    rng = random.Random(1)
    words = sorted({word for line in text for word in line.strip(".?!").split()})
    lines = ([rng.choice(text), " ".join(rng.choices(words, k=rng.randint(1, 40)))] for _ in range(count // 2))
    return [line for pair in lines for line in pair]


def cut_data(data: Path, out: Path, count: int) -> None:
    """Copy a data folder with only so many sentences in its training set, which are its test set, too."""
    part = out.with_name("part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(data, part)
    for language in ("en", "de"):
        for split in ("train", "test"):
            name = str(part / f"{split}.en-de.{language}")
            builder = indexed_dataset.make_builder(indexed_dataset.data_file_path(name), "mmap", 1 << 15)
            known = data_utils.load_indexed_dataset(str(data / f"train.en-de.{language}"), None)
            for number in range(count):
                builder.add_item(known[number])
            builder.finalize(indexed_dataset.index_file_path(name))
        raw = (data.parents[1] / f"raw/train.{language}").read_text(encoding="utf-8").split("\n")[:count]
        (part / f"raw/test.{language}").write_text("".join(line + "\n" for line in raw), encoding="utf-8")
    part.rename(out)


def processes(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):  # those of each thread
        for child in path.read_text(encoding="ascii").split():
            yield from processes(int(child))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sampled(child: subprocess.Popen[Any]) -> list[list[float]]:
    """CPU seconds, bytes and most bytes so far of the process that has worked most, until the first one ends."""
    by_process: dict[int, list[list[float]]] = {}
    while child.poll() is None:
        with contextlib.suppress(OSError, IndexError):  # one that has ended meanwhile
            for pid in processes(child.pid):
                by_process.setdefault(pid, []).append([round(cpu_seconds(pid), 2), *bytes_of_process(pid)])
        time.sleep(PAUSE)
    return max(by_process.values(), key=lambda samples: samples[-1][0])


def run(words: list[str], log: Path, talk: Callable[[subprocess.Popen[Any]], None] | None = None) -> list[list[float]]:
    """The samples of a command.

    Args:
        words: after ``amlp-fairseq``.
        log: the file of what it prints to standard error.
        talk: what to do with the process meanwhile, whose standard output it can read then; it ends it.
    """
    command = [sys.executable, "-m", "amlp_fairseq", *words]
    output = subprocess.PIPE if talk else subprocess.DEVNULL
    with log.open("w") as file, subprocess.Popen(command, stdout=output, stderr=file, env=child_environment()) as child:
        talker = threading.Thread(target=talk or (lambda child: None), args=(child,))
        talker.start()
        samples = sampled(child)
        talker.join()
    if child.returncode and not talk:
        raise ChildProcessError(f"amlp-fairseq {' '.join(words)}: status {child.returncode}, see {log}")
    return samples


def requests(lines: list[str]) -> Callable[[subprocess.Popen[Any]], None]:
    """A function that sends lines to a server, a few a request, and ends it."""

    def send(server: subprocess.Popen[Any]) -> None:
        try:
            address = server.stdout.readline().split()[-1].decode()  # type: ignore[union-attr]
            left, rng = lines[:], random.Random(2)
            while left:
                texts = [left.pop() for _ in range(min(len(left), rng.randint(1, 8)))]
                data = json.dumps({"texts": texts}).encode()
                with urllib.request.urlopen(f"{address}/translate", data) as answer:
                    assert len(json.load(answer)["translations"]) == len(texts)
        finally:
            server.terminate()

    return send


def measure(name: str, dtype: str, data: Path, work: Path, count: int) -> list[list[float]]:
    """The samples of a run."""
    options, scratch = ["--decode-dtype", dtype], work / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    text = (data / "raw/train.en").read_text(encoding="utf-8").splitlines()
    lines = varied(text, count)
    log = work / f"{name} {dtype}.log".replace(" ", "_")
    command, _, model = name.partition(" ")
    folder = str(MODELS / (model or "ar"))
    if command == "translate":
        (work / "lines").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return run(["translate", "--model", folder, "--input", str(work / "lines"), *options], log)
    if command == "serve":
        return run(["serve", "--model", folder, "--port", "0", *options], log, requests(lines))
    cut = work / f"data-{count}"
    if not cut.exists():
        cut_data(data / "data/data-bin", cut, count)
    if command == "distill":
        return run(["distill", folder, str(cut), str(scratch), "--cpu", *options], log)
    training = work / "training"
    if not training.exists():  # the model's parameters, as a training leaves them
        words = ["train", str(cut), "--row", "transformer", "--scale", "embedded", "--arch", "plugin_transformer"]
        words += ["--save-dir", str(training), "--finetune-from-model", folder, "--max-update", "1", "--lr", "1e-9"]
        run([*words, "--cpu"], log)
    results = work / "results.jsonl"
    results.unlink(missing_ok=True)  # or what is there is not evaluated again
    return run(["evaluate", str(training), str(cut), "--results", str(results), "--cpu", *options], log)


def summary(samples: list[list[float]]) -> dict[str, Any]:
    """The numbers of a run."""
    quarter = START + (samples[-1][0] - START) / 4
    first = [sample for sample in samples if sample[0] <= quarter][-1]
    return {
        "cpu_seconds": samples[-1][0],
        "quarter_peak_bytes": first[2],
        "peak_bytes": samples[-1][2],
        "samples": samples[:: len(samples) // STORED + 1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", type=Path)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=RUNS, metavar="NAME")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, metavar="TYPE")
    parser.add_argument("--lines", type=positive, default=4000, metavar="N", help="or sentences (default: 4000)")
    parser.add_argument("--work", type=Path, default=Path("decoding_memory"), help="default: decoding_memory")
    add_files(parser)
    args = parser.parse_args()
    check_files(parser, args)
    if not (args.data / "raw/train.en").is_file():
        parser.error(f"DATA {args.data} is not of examples/models/corpus.sh")
    args.work.mkdir(parents=True, exist_ok=True)
    runs, targets = {}, []
    for dtype in args.types:
        for name in args.runs:
            path = args.work / f"{name} {dtype} {args.lines}.json".replace(" ", "_")
            if not path.exists():
                path.write_text(json.dumps(measure(name, dtype, args.data, args.work, args.lines)), encoding="utf-8")
            run = runs[f"{name} {dtype}"] = summary(json.loads(path.read_text(encoding="utf-8")))
            growth = run["peak_bytes"] / run["quarter_peak_bytes"]
            targets.append(target(f"{name} {dtype}: level, {LEVEL}", growth, growth <= LEVEL))
            print(f"{name} {dtype}: {growth:.2f}", file=sys.stderr)
    columns: list[Column] = [
        ("run", "run"), ("CPU seconds", lambda row: f"{row['cpu_seconds']:.0f}"),
        ("MiB after a quarter", lambda row: f"{row['quarter_peak_bytes'] / MIB:.0f}"),
        ("at the end", lambda row: f"{row['peak_bytes'] / MIB:.0f}"),
        ("times", lambda row: row["peak_bytes"] / row["quarter_peak_bytes"]),
    ]  # fmt: skip
    print(table([{"run": name, **run} for name, run in runs.items()], columns), "\n")
    finish({"environment": environment("cpu"), "lines": args.lines, "runs": runs, "targets": targets}, args)


if __name__ == "__main__":
    main()
