"""Check and time, in minutes, everything that a GPU must do for this project.

    python -m benchmarks.gpu_check [--out FILE.json] [--parts NAME …] [--size SIZE]

Parts run one after the other, each in a process of its own with a limit on its time: one that crashes or hangs is
reported, and the others go on. The results are written to FILE.json as they come, and printed as tables in Markdown at
the end; the status is 1 if any part failed. Without a CUDA device the kernels run in Triton's interpreter, and all
sizes are small.

- environment: versions, the device, what Triton needs to compile
- parity: the kernels in all types and their gradients against float64
- graphs: decoder calls that are captured as CUDA graphs against plain ones
- ops: forward and backward of the kernels on more than the L2 cache holds, as a share of the bandwidth of a copy
- lengths, decoding: benchmarks/length.py and benchmarks/decoding.py, in part
- tuning (only if it is named): warps and blocks of each kernel, and the table for amlp_fairseq/ops/launches.py
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_parts import PARTS, Part, Report, Row, first_line, forks
from benchmarks.gpu_sizes import SIZES, Size

#: Failures of a part that are printed; the file has all.
SHOWN = 10
#: What the parts need; imported once, before the first one starts.
MODULES = ("benchmarks.ops", "benchmarks.length", "benchmarks.decoding", "amlp_fairseq.ops.amlp_cov.cases")


def _child(part: Part, path: Path, log: Path, size: Size, device: str) -> None:
    os.setsid()  # so that what it starts ends with it
    sys.stdout.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.stdout = sys.stderr = open(1, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    report = Report(path)
    try:
        part.run(report, size, device)
    except SystemExit as end:
        if end.code not in (None, 0):
            report.note("failures", str(end.code))
    except BaseException as error:
        traceback.print_exc()
        report.note("failures", f"{type(error).__name__}: {first_line(error)}")
    report.results["finished"] = True
    report.save()
    os._exit(0)


@contextlib.contextmanager
def started(target: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """A process; it is killed with all that it has started, if it is still there at the end."""
    child: Any = forks.Process(target=target, args=arguments)
    child.start()
    try:
        yield child
    finally:
        if child.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
        child.join(30)  # one that hangs in a driver cannot even be killed


def run_part(name: str, size: Size, device: str, limit: float) -> Row:
    """The results of a part with its status, passed, failed or skipped, however it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "results"), Path(folder, "log")
        Report(path).save()
        start = time.perf_counter()
        with started(_child, PARTS[name], path, log, size, device) as child:
            child.join(limit)
            hangs, code = child.is_alive(), child.exitcode
        results: Row = json.loads(path.read_text(encoding="utf-8"))
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if hangs:
        results["failures"].append(f"stopped: it had not finished after {limit:.0f} s")
    elif not results.pop("finished"):
        how = f"by {signal.Signals(-code).name}" if code and code < 0 else f"with status {code}"
        results["failures"].append(f"crashed: its process ended {how}")
    status = "failed" if results["failures"] else "skipped" if results["skipped"] else "passed"
    tail = {"log": printed.splitlines()[-40:]} if results["failures"] else {}
    return {"status": status, "seconds": round(time.perf_counter() - start, 1), **results, **tail}


def _has_cuda(path: Path) -> None:
    path.write_text("cuda" if torch.cuda.is_available() else "cpu")
    os._exit(0)


def device_here() -> str:
    """``cuda`` or ``cpu``. Another process asks: one that has asked could not fork such as use CUDA."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "device")
        path.write_text("cpu")
        with started(_has_cuda, path) as child:
            child.join(60)
        return path.read_text()


def tables(result: Row) -> str:
    """All results in Markdown."""
    from benchmarks.tables import fields, table

    blocks = [f"# gpu_check on {result['device']}, {result['size']} size"]
    overview = [
        {"part": name, "status": part["status"], "s": f"{part['seconds']:.0f}", "failures": len(part["failures"]),
         "goals missed": len(part["goals_missed"])}
        for name, part in result["parts"].items()
    ]  # fmt: skip
    blocks.append(table(overview, fields(("part", "status", "s", "failures", "goals missed"))))
    for name, part in result["parts"].items():
        blocks.append(f"## {name}: {part['status']}" + (f", {part['skipped']}" if part["skipped"] else ""))
        for title, key in (("failed", "failures"), ("goal missed", "goals_missed")):
            lines = [f"- {title}: {text}" for text in part[key][:SHOWN]]
            lines += [f"- and {len(part[key]) - SHOWN} more"] * (len(part[key]) > SHOWN)
            blocks += ["\n".join(lines)] * bool(lines)
        if columns := list(dict.fromkeys(key for row in part["rows"] for key in row)):
            blocks.append(table(part["rows"], fields(columns)))
    return "\n\n".join(blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, usual = parser.add_argument, [name for name in PARTS if name != "tuning"]
    add("--out", type=Path, default=Path("gpu_check.json"), metavar="FILE.json", help="(default: %(default)s)")
    add("--parts", nargs="+", choices=PARTS, default=usual, metavar="NAME", help="(default: all but tuning)")
    add("--size", choices=SIZES, help="(default: full, or small without a CUDA device)")
    add("--minutes", type=float, default=10, help="for all parts together (default: %(default)s)")
    args = parser.parse_args()
    if not args.minutes > 0:
        parser.error(f"--minutes {args.minutes:g}: it must be more than 0")
    try:
        args.out.touch()
    except OSError as error:
        parser.error(f"--out {args.out}: {error.strerror}")

    device, begin = device_here(), time.perf_counter()
    size = args.size or ("full" if device == "cuda" else "small")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
        print(f"gpu_check: there is no CUDA device; kernels run in Triton's interpreter, {size} size", file=sys.stderr)
    for module in MODULES:
        with contextlib.suppress(Exception):  # the parts that need it will say why
            importlib.import_module(module)
    result: Row = {"device": device, "size": size, "complete": False, "parts": {}}
    try:
        for name in args.parts:
            left = 60 * args.minutes - (time.perf_counter() - begin)
            print(f"gpu_check: {name}", end="", file=sys.stderr, flush=True)
            part = run_part(name, SIZES[size], device, max(min(left, PARTS[name].seconds), 1))
            print(f": {part['status']} ({part['seconds']:.0f} s)", file=sys.stderr)
            result["parts"][name] = part
            args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    except KeyboardInterrupt:
        print("\ngpu_check: interrupted", file=sys.stderr)
        sys.exit(130)
    result["complete"] = True
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(tables(result))
    failed = [name for name, part in result["parts"].items() if part["status"] == "failed"]
    print(f"\n{args.out}: " + (f"FAILED: {', '.join(failed)}" if failed else "no part failed"))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
