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
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.training.environment import environment
from benchmarks.harness import check_folders, verdict, write

SETTINGS = ("float32", "bfloat16", "unbounded float32", "unbounded bfloat16", "stock float32", "stock bfloat16")
#: Updates of the largest batch.
LARGEST = 8
#: The targets: memory at the end against the first epoch's, the most against the largest batch's need, and speed
#: against keeping everything.
LEVEL, NEED, SPEED = 1.1, 1.2, 0.97
MIB = 1 << 20


def arguments(data: Path, row: str, scale: str) -> list[str]:
    """Those of fairseq-train, without the plugin's folder."""
    command = [sys.executable, "-m", "amlp_fairseq.cli.main", "train", str(data), "--row", row, "--scale", scale]
    done = subprocess.run([*command, "--cpu", "--print"], stdout=subprocess.PIPE, text=True, check=True)
    words = shlex.split(done.stdout.strip().splitlines()[-1])[1:]
    place = words.index("--user-dir")
    return words[:place] + words[place + 2 :]


def samples(path: Path, updates: int) -> list[dict[str, Any]]:
    """What a training has written up to an update."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [found for line in lines if (found := json.loads(line))["update"] <= updates]


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


def summary(found: list[dict[str, Any]], need: int) -> dict[str, Any]:
    """The numbers of a training."""
    first, last = found[0], found[-1]
    first_epoch = [each for each in found if each["epoch"] == first["epoch"]]
    return {
        "updates": last["update"],
        "epochs": last["epoch"],
        "first_epoch_bytes": max(each["bytes"] for each in first_epoch),
        "end_bytes": last["bytes"],
        "peak_bytes": last["peak_bytes"],
        "first_epoch_peak_bytes": first_epoch[-1]["peak_bytes"],
        "largest_batch_bytes": need,
        "updates_per_cpu_second": (last["update"] - first["update"]) / (last["cpu_seconds"] - first["cpu_seconds"]),
        "samples": found,
    }


def targets(runs: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that the settings which ran can tell."""
    found = []
    for dtype in ("float32", "bfloat16"):
        if dtype not in runs:
            continue
        run, unbounded = runs[dtype], runs.get(f"unbounded {dtype}")
        level = run["peak_bytes"] / run["first_epoch_peak_bytes"]
        need = run["peak_bytes"] / run["largest_batch_bytes"]
        found += [
            {"target": f"{dtype}: level after the first epoch, {LEVEL}", "value": level, "passed": level <= LEVEL},
            {"target": f"{dtype}: at most {NEED} times the largest batch's", "value": need, "passed": need <= NEED},
        ]
        if unbounded and unbounded["updates"] == run["updates"]:
            speed = run["updates_per_cpu_second"] / unbounded["updates_per_cpu_second"]
            found.append({"target": f"{dtype}: {SPEED} times as fast", "value": speed, "passed": speed >= SPEED})
    return found


def line(setting: str, run: Mapping[str, Any]) -> str:
    sizes = [run[name] / MIB for name in ("first_epoch_bytes", "end_bytes", "peak_bytes", "largest_batch_bytes")]
    first, end, peak, need = sizes
    speed = run["updates_per_cpu_second"]
    return (
        f"{setting:20}{run['updates']:8}{first:12.0f}{end:10.0f}{peak:10.0f}{need:15.0f}{peak / need:8.2f}{speed:14.3f}"
    )


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
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write all numbers to this file")
    args = parser.parse_args()
    check_folders(parser, args, "out")
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
    print(
        f"{'MiB':20}{'updates':>8}{'1st epoch':>12}{'end':>10}{'peak':>10}{'largest batch':>15}{'times':>8}"
        f"{'updates/CPU s':>14}"
    )
    for setting, found in runs.items():
        print(line(setting, found))
    result: dict[str, Any] = {
        "environment": environment("cpu"),
        "options": {name: getattr(args, name) for name in ("row", "scale", "updates", "every", "together")},
        "load_before_and_after": load,
        "runs": runs,
        "targets": targets(runs),
    }
    for target in result["targets"]:
        print(verdict(target))
    write(args.out, result)


if __name__ == "__main__":
    main()
