"""Memory and speed of trainings on a CPU, update by update, beside stock fairseq-train's on the same data.

    python -m benchmarks.training_memory DATA [--updates 3000] [--settings NAME …] [--row ROW] [--work DIR] [--out FILE]

DATA is a folder of ``amlp-fairseq prepare``. Each setting trains ROW at --scale in a process of one thread, with its
validation and checkpoints:

- float32, bfloat16: as ``amlp-fairseq train``
- unbounded float32, unbounded bfloat16: the same, keeping all memory that it frees and 1024 compiled products
- stock float32, stock bfloat16: fairseq-train without the plugin (of rows that it has). Its --bf16 asks for a TPU: here
  ``common.bf16`` is set, as fairseq-hydra-train does

Memory is the process's (VmRSS, and VmHWM: at most so far). The largest batch's need is the VmHWM of a process that
makes 8 updates of nothing else. Speed is in updates per CPU second, since a machine may have other users; with
--together all settings run at once and have the same ones. What is in --work already with as many updates is not run
again, so that a run that was stopped goes on, and one with fewer --updates shows what there is.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.training.environment import environment
from benchmarks.harness import MIB, add_files, check_files, finish, target
from benchmarks.tables import Column, table

SETTINGS = ("float32", "bfloat16", "unbounded float32", "unbounded bfloat16", "stock float32", "stock bfloat16")
#: Updates of the largest batch.
LARGEST = 8
#: The targets: memory at the end against the first epoch's, the most against the largest batch's need, and speed
#: against keeping everything.
LEVEL, NEED, SPEED = 1.1, 1.2, 0.97


def arguments(data: Path, row: str, scale: str) -> list[str]:
    """The arguments of fairseq-train, without the plugin's folder."""
    command = [sys.executable, "-m", "amlp_fairseq.cli.main", "train", str(data), "--row", row, "--scale", scale]
    done = subprocess.run([*command, "--cpu", "--print"], stdout=subprocess.PIPE, text=True, check=True)
    words = shlex.split(done.stdout.strip().splitlines()[-1])[1:]
    index = words.index("--user-dir")
    return words[:index] + words[index + 2 :]


def samples(path: Path, updates: int) -> list[dict[str, Any]]:
    """The samples of a training up to an update."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [sample for line in lines if (sample := json.loads(line))["update"] <= updates]


def train(path: Path, setting: str, words: list[str], updates: int, every: int, largest: bool = False) -> None:
    """Train for ``updates``, unless ``path`` has as many."""
    known = samples(path, updates)
    if known and known[-1]["update"] > updates - every:
        return
    path.unlink(missing_ok=True)
    kind, dtype = setting.split() if " " in setting else ("", setting)
    switches = {"stock": ["--stock"], "unbounded": ["--keep-all"], "": []}[kind]
    switches += ["--bf16"] * (dtype == "bfloat16") + ["--largest"] * largest
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, path.with_suffix(".log").open("w") as log:
        command = [sys.executable, "-m", "benchmarks.sampled_training", str(path), str(every), *switches, "--", *words]
        command += ["--max-update", str(updates), "--save-dir", folder, "--disable-validation" if largest else ""]
        subprocess.run([*filter(None, command)], stdout=log, stderr=log, check=True, env=child_environment())


def child_environment() -> dict[str, str]:
    """One thread, and the allocator and caches as they are by default."""
    names = ("ONEDNN_", "DNNL_", "LRU_CACHE", "MALLOC_", "GLIBC_")
    return {name: value for name, value in os.environ.items() if not name.startswith(names)} | {"OMP_NUM_THREADS": "1"}


def summary(samples: list[dict[str, Any]], need: int) -> dict[str, Any]:
    """The numbers of a training."""
    first, last = samples[0], samples[-1]
    first_epoch = [sample for sample in samples if sample["epoch"] == first["epoch"]]
    return {
        "updates": last["update"],
        "epochs": last["epoch"],
        "first_epoch_bytes": max(sample["bytes"] for sample in first_epoch),
        "end_bytes": last["bytes"],
        "peak_bytes": last["peak_bytes"],
        "first_epoch_peak_bytes": first_epoch[-1]["peak_bytes"],
        "largest_batch_bytes": need,
        "updates_per_cpu_second": (last["update"] - first["update"]) / (last["cpu_seconds"] - first["cpu_seconds"]),
        "samples": samples,
    }


def targets(runs: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The targets that the settings which ran can tell."""
    judged = []
    for dtype in ("float32", "bfloat16"):
        if dtype not in runs:
            continue
        run, unbounded = runs[dtype], runs.get(f"unbounded {dtype}")
        level = run["peak_bytes"] / run["first_epoch_peak_bytes"]
        need = run["peak_bytes"] / run["largest_batch_bytes"]
        judged += [
            target(f"{dtype}: level after the first epoch, {LEVEL}", level, level <= LEVEL),
            target(f"{dtype}: at most {NEED} times the largest batch's", need, need <= NEED),
        ]
        if unbounded and unbounded["updates"] == run["updates"]:
            speed = run["updates_per_cpu_second"] / unbounded["updates_per_cpu_second"]
            judged.append(target(f"{dtype}: {SPEED} times as fast", speed, speed >= SPEED))
    return judged


def results_table(runs: Mapping[str, dict[str, Any]]) -> str:
    """A line for each setting."""

    def mib(name: str) -> Callable[[Row], object]:
        return lambda row: f"{row[name] / MIB:.0f}"

    columns: list[Column] = [
        ("setting", "setting"), ("updates", "updates"), ("MiB, first epoch", mib("first_epoch_bytes")),
        ("at the end", mib("end_bytes")), ("peak", mib("peak_bytes")), ("largest batch", mib("largest_batch_bytes")),
        ("peak over it", lambda row: row["peak_bytes"] / row["largest_batch_bytes"]),
        ("updates per CPU second", "updates_per_cpu_second"),
    ]  # fmt: skip
    return table([{"setting": setting, **run} for setting, run in runs.items()], columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", type=Path)
    parser.add_argument("--row", default="transformer")
    parser.add_argument("--scale", default="multi30k")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS, metavar="NAME")
    parser.add_argument("--updates", type=positive, default=3000)
    parser.add_argument("--every", type=positive, default=10, help="updates between samples (default: 10)")
    parser.add_argument("--together", action="store_true", help="all settings at once, a core each")
    parser.add_argument("--work", type=Path, default=Path("training_memory"), help="default: training_memory")
    add_files(parser)
    args = parser.parse_args()
    check_files(parser, args)
    if not args.data.is_dir():
        parser.error(f"DATA {args.data}: there is no such folder")
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    words = arguments(args.data, args.row, args.scale)
    path = {setting: args.work / f"{args.row} {setting}.jsonl".replace(" ", "_") for setting in args.settings}
    largest = {setting: path[setting].with_suffix(".largest.jsonl") for setting in args.settings}

    def run(setting: str) -> dict[str, Any]:
        train(largest[setting], setting, words, LARGEST, 1, largest=True)
        train(path[setting], setting, words, args.updates, args.every)
        need = samples(largest[setting], LARGEST)[-1]["peak_bytes"]
        return summary(samples(path[setting], args.updates), need)

    load = [os.getloadavg()[2]]
    with ThreadPoolExecutor(len(args.settings) if args.together else 1) as pool:
        runs = dict(zip(args.settings, pool.map(run, args.settings), strict=True))
    load.append(os.getloadavg()[2])
    print(results_table(runs), "\n")
    result: dict[str, Any] = {
        "environment": environment("cpu"),
        "options": {name: getattr(args, name) for name in ("row", "scale", "updates", "every", "together")},
        "load_before_and_after": load,
        "runs": runs,
        "targets": targets(runs),
    }
    finish(result, args)


if __name__ == "__main__":
    main()
