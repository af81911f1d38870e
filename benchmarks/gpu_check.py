"""Everything that a GPU must do for this project, in minutes: is it right, and how fast is it?

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
import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import sysconfig
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

Row = dict[str, Any]
forks = multiprocessing.get_context("fork")
#: The shares of a copy's bandwidth that are to be reached.
FORWARD_GOAL, BACKWARD_GOAL = 0.8, 0.75
#: Scores of the same words may differ by so much between captured and plain calls, which have other shapes.
SCORE_TOLERANCE = 1e-3
#: Failures of a part that are printed; the file has all.
SHOWN = 10
#: What the parts need; imported once, before the first one starts.
MODULES = ("benchmarks.ops", "benchmarks.length", "benchmarks.decoding", "amlp_fairseq.ops.amlp_cov.cases")


class Size(NamedTuple):
    """How much is checked.

    Attributes:
        conv, cov: names of the operators' cases; all if empty.
        dtypes: of the kernels' inputs.
        shape: B, C, H and k of the operators that are timed, and their fewest positions.
        model: sizes of the models that decode, as options.
        systems: models whose captured calls are compared.
        longest: words of the longest outputs of these, more than decoders have room for at first.
        lengths, decoding: arguments of these benchmarks.
        repeats: timed calls.
    """

    conv: tuple[str, ...]
    cov: tuple[str, ...]
    dtypes: tuple[str, ...]
    shape: tuple[int, int, int, int, int]
    model: str
    systems: tuple[str, ...]
    longest: int
    lengths: str
    decoding: str
    repeats: int


DTYPES = ("float32", "float16", "bfloat16")
BASE = "--embed-dim 512 --ffn-embed-dim 2048 --layers 6 --heads 8 --words 32000"
TOY = "--embed-dim 16 --ffn-embed-dim 16 --layers 1 --heads 2 --words 40"
SMALL_QUERY = "--embed-dim 16 --heads 2 --inner-dim 4 --batch 1 --repeats 1"
SIZES = {
    "full": Size(
        (), (), DTYPES, (16, 1024, 16, 31, 1024), BASE, ("ar", "ibdecoder", "ibdecoder-sa", "cmlmc"), 70,
        "--lengths 256 1024 4096 --dtype bfloat16 --repeats 20 --seconds 2",
        "--systems transformer ar ibdecoder cmlmc --sentences 8 --repeats 2 --cuda-graphs", 20,
    ),
    "small": Size(
        ("causal", "steps of 2", "history before the outputs"), ("plain", "padding left, right, both"), DTYPES,
        (2, 32, 2, 7, 64), TOY, ("ar", "ibdecoder", "cmlmc"), 70, f"{SMALL_QUERY} --lengths 16 64",
        "--systems transformer ar ibdecoder --precisions float32 --sentences 4 --repeats 1", 3,
    ),
    "tiny": Size(
        ("causal",), ("two positions",), ("float32",), (1, 16, 2, 3, 8), TOY, ("ar",), 20,
        f"{SMALL_QUERY} --lengths 8 --systems SDPA AMLP-Cov",
        "--systems ibdecoder --precisions float32 --sentences 1 --repeats 1 --beams 1", 1,
    ),
}  # fmt: skip


class Report:
    """What a part has found so far, in a file: what was found before a crash is not lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: Row = {"rows": [], "failures": [], "goals_missed": [], "skipped": None, "finished": False}

    def row(self, **values: Any) -> None:
        self.found["rows"].append(values)
        self.save()

    def note(self, what: str, text: str) -> None:
        """``what``: one of the lists."""
        self.found[what].append(text)
        self.save()

    def skip(self, reason: str) -> None:
        self.found["skipped"] = reason
        self.save()

    def save(self) -> None:
        self.path.write_text(json.dumps(self.found), encoding="utf-8")


def check_environment(report: Report, size: Size, device: str) -> None:
    from amlp_fairseq.training.environment import environment

    values: Row = dict(environment(device))
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        values |= {
            "capability": f"{gpu.major}.{gpu.minor}",
            "memory_gib": round(gpu.total_memory / 2**30, 1),
            "l2_cache_mib": gpu.L2_cache_size / 2**20,
            "multiprocessors": gpu.multi_processor_count,
        }
        from amlp_fairseq.ops.backend import choose_backend

        try:
            choose_backend("triton", torch.device("cuda", 0), "the kernels")
        except RuntimeError as error:
            report.note("failures", str(error))
        compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
        if not any(shutil.which(name) for name in compilers if name):
            report.note("failures", "no C compiler, which Triton needs to launch kernels: install gcc, or set CC")
        if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
            report.note("failures", "no Python.h, which Triton needs to launch kernels: install python3-dev")
    for name, value in values.items():
        report.row(name=name, value=value)
    for module in ("fairseq.data.data_utils_fast", "fairseq.libbleu", "triton"):
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever it is, it is what the report is for
            report.note("failures", f"import {module}: {type(error).__name__}: {error}")


def needs_kernels(check: Callable[[Report, Size, str], None], report: Report, size: Size, device: str) -> None:
    """A check, where its kernels can run."""
    from amlp_fairseq.ops.backend import INTERPRETER_OBSTACLE

    if device == "cpu" and INTERPRETER_OBSTACLE:
        report.skip(INTERPRETER_OBSTACLE)
    else:
        check(report, size, device)


class _Agreement(NamedTuple):
    """A case of an operator, to be compared with float64."""

    operator: str
    case: str
    dtype: str
    dropout: float = 0.0

    def errors(self, device: str) -> tuple[Row, Row]:
        """Of the output and each gradient: how far off it is, and how far it may be."""
        from amlp_fairseq.ops.amlp_cov import cases as cov
        from amlp_fairseq.ops.dynamic_conv import cases as conv

        dtype = getattr(torch, self.dtype)
        if self.operator == "cross_covariance":
            case = cov.CASES[self.case]
            return cov.errors(case, dtype, "triton", device), cov.tolerances(case, dtype, device)
        arguments = conv.CASES[self.case], dtype
        options: Row = {"shared": self.operator == "light_conv", "dropout": self.dropout}
        return (
            conv.errors(*arguments, "triton", device, **options),
            conv.tolerances(*arguments, device, **options),
        )


def _attempt(agreement: _Agreement, device: str) -> tuple[Row, Row] | str:
    try:
        return agreement.errors(device)
    except Exception as error:  # a kernel that does not compile: the others may
        return f"{type(error).__name__}: {_first_line(error)}"


def check_agreement(report: Report, size: Size, device: str) -> None:
    """The kernels' output and gradients against float64, in as many processes as there are CPUs: most of the time is
    the compiler's."""
    from amlp_fairseq.ops.amlp_cov import cases as cov
    from amlp_fairseq.ops.dynamic_conv import cases as conv

    agreements = [
        _Agreement(operator, name, dtype, dropout)
        for dtype, name in itertools.product(size.dtypes, size.conv or conv.CASES)
        for operator in ("dynamic_conv", "light_conv")
        for dropout in ((0.0, 0.3) if dtype == "float32" else (0.3,))
    ]
    agreements += [
        _Agreement("cross_covariance", name, dtype)
        for dtype, name in itertools.product(size.dtypes, size.cov or cov.CASES)
    ]
    processes = min(os.cpu_count() or 1, len(agreements))
    with ProcessPoolExecutor(processes, forks, torch.set_num_threads, (1,)) as pool:
        for agreement, found in zip(agreements, pool.map(partial(_attempt, device=device), agreements), strict=True):
            where = f"{agreement.operator}, {agreement.case}, dropout {agreement.dropout}, {agreement.dtype}"
            if isinstance(found, str):
                report.note("failures", f"{where}: {found}")
                continue
            errors, allowed = found
            for name, error in errors.items():
                report.row(**agreement._asdict(), of=name, error=error, allowed=allowed[name])
                if not error <= allowed[name]:
                    text = f"{name} is off by {error:.1e}, {allowed[name]:.1e} is allowed"
                    report.note("failures", f"{where}: {text}")


def check_graphs(report: Report, size: Size, device: str) -> None:
    """Words and scores of the same model with and without graphs, in batches of several sizes."""
    from amlp_fairseq.decoding import cuda_graphs
    from amlp_fairseq.evaluation.parameters import dictionary
    from benchmarks.decoding import random_words
    from benchmarks.systems import SYSTEMS, Batch, Workshop

    if device not in cuda_graphs.CAPTURING:
        report.skip("CUDA graphs need a CUDA device")
        return
    args = _model_options(size, device)
    words = dictionary(4 + args.words)
    workshop = Workshop(args, words, words)
    sources = [random_words(length, words) for length in (3, 9, 5, 12, 7, 4, 40, 6)]
    batches = [(sources[:5], 12), (sources[5:6], 7), (sources, size.longest)]
    for name in size.systems:
        model, task = workshop.built(name)[:2]
        plain, captured = (
            SYSTEMS[name].engine(model, task, "float32", Namespace(**{**vars(args), "cuda_graphs": graphs}), True)
            for graphs in (False, True)
        )
        for (given, length), number in itertools.product(batches, (4, 10) if plain.iterative else (1, 4)):
            batch = Batch(list(range(len(given))), given, length)
            expected, found = (engine.call(batch, number)() for engine in (plain, captured))
            pairs = list(zip(plain.read(expected), captured.read(found), strict=True))
            scores = [[float(sentence[0]["score"]) for sentence in result] for result in (expected, found)]
            differing = sum(ours != theirs for theirs, ours in pairs)
            gap = max(abs(ours - theirs) for theirs, ours in zip(*scores, strict=True))
            decoding = f"{number} calls" if plain.iterative else f"beam {number}"
            where = {"model": name, "decoding": decoding, "sentences": len(given), "words": length}
            report.row(**where, other_words=differing, score_gap=gap)
            if not gap <= SCORE_TOLERANCE:
                report.note("failures", f"{name}, {decoding}, {len(given)} sentences: scores differ by {gap:.1e}")


def check_ops(report: Report, size: Size, device: str) -> None:
    """Bytes that an operator must read and write, over its time, as a share of those of a copy."""
    for dtype in size.dtypes:
        for name, work in _operators(size, device, getattr(torch, dtype)).items():
            times = _medians({"copy": work.copy, "forward": work.forward, "backward": work.backward}, size, device)
            bandwidth = work.copied / times["copy"]
            shares = {
                "forward": work.moved_forward / times["forward"] / bandwidth,
                "backward": work.moved_backward / times["backward"] / bandwidth,
            }
            report.row(
                operator=name, dtype=dtype, positions=work.positions, mib=work.copied / 2 / 2**20,
                copy_gb_s=bandwidth / 1e9, forward_ms=1000 * times["forward"], backward_ms=1000 * times["backward"],
                forward_share=shares["forward"], backward_share=shares["backward"],
            )  # fmt: skip
            for what, goal in (("forward", FORWARD_GOAL), ("backward", BACKWARD_GOAL)):
                if device == "cuda" and not shares[what] >= goal:
                    text = f"{name}, {dtype}: {what} at {shares[what]:.0%} of a copy's bandwidth, not {goal:.0%}"
                    report.note("goals_missed", text)


class _Work(NamedTuple):
    """An operator on inputs larger than the cache, and a copy of one of them; bytes."""

    positions: int
    copy: Callable[[], Any]
    forward: Callable[[], Any]
    backward: Callable[[], Any]
    copied: int
    moved_forward: int
    moved_backward: int


def _operators(size: Size, device: str, dtype: torch.dtype) -> dict[str, _Work]:
    from amlp_fairseq.ops.amlp_cov import cross_covariance
    from amlp_fairseq.ops.dynamic_conv import dynamic_conv, light_conv

    batch, channels, heads, width, positions = size.shape
    if device == "cuda":  # each tensor four times as large as the cache
        needed = 4 * torch.cuda.get_device_properties(0).L2_cache_size / (batch * channels * dtype.itemsize)
        positions = max(positions, math.ceil(needed / 256) * 256)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device, dtype=dtype).requires_grad_()

    def work(x: Tensor, inputs: list[Tensor], run: Callable[..., Tensor], reads: int) -> _Work:
        out = run(*inputs)
        grad, target = torch.ones_like(out), torch.empty_like(x)
        copy = partial(_without_gradients, target.copy_, x)
        gradients = partial(torch.autograd.grad, out, inputs, grad, retain_graph=True)
        # Inputs and the gradient of the output are read, gradients of the inputs are written.
        forward, backward = partial(_without_gradients, run, *inputs), reads + out.nbytes + reads
        return _Work(positions, copy, forward, gradients, 2 * x.nbytes, reads + out.nbytes, backward)

    x, weight, shared = random(positions, batch, channels), random(positions, batch, heads, width), random(heads, width)
    q, k = (random(positions, batch, heads, channels // heads).permute(1, 2, 0, 3) for _ in range(2))
    options: Row = {"padding_l": width - 1, "backend": "triton"}
    return {
        "dynamic_conv": work(x, [x, weight], partial(dynamic_conv, **options), x.nbytes + weight.nbytes),
        "light_conv": work(x, [x, shared], partial(light_conv, **options), x.nbytes + shared.nbytes),
        "cross_covariance": work(q, [q, k], partial(cross_covariance, backend="triton"), q.nbytes + k.nbytes),
    }


@torch.no_grad()
def _without_gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def _medians(calls: dict[str, Callable[[], Any]], size: Size, device: str) -> dict[str, float]:
    """Seconds; all take turns, and the first round warms up."""
    from benchmarks.harness import rounds
    from benchmarks.ops import seconds

    found = rounds({name: partial(seconds, call, device) for name, call in calls.items()}, size.repeats + 1)
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def tune(report: Report, size: Size, device: str) -> None:
    """Time each kernel's operator with every launch that compiles; the fastest are the table."""
    from amlp_fairseq.ops.launches import LAUNCHES, Launch

    best: dict[tuple[str, int], Launch] = {}
    for (kernel, bytes_), present in LAUNCHES.items():
        if "wide" in kernel:  # not of the operators that are timed
            continue
        dtype = "float32" if bytes_ == 4 else "bfloat16"
        work = _operators(size, device, getattr(torch, dtype))[kernel.partition(",")[0]]
        call = work.backward if "gradient" in kernel else work.forward
        times: dict[Launch, float] = {}
        others = itertools.product((2, 4, 8), (present.positions,), (32, 64))
        for launch in dict.fromkeys([present, *itertools.starmap(Launch, others)]):
            LAUNCHES[kernel, bytes_] = launch
            with contextlib.suppress(Exception):  # out of shared memory, say
                times[launch] = _medians({"call": call}, size, device)["call"]
                report.row(kernel=kernel, dtype=dtype, **launch._asdict(), ms=1000 * times[launch])
        LAUNCHES[kernel, bytes_] = best[kernel, bytes_] = min(times, key=lambda launch: times[launch])
    for (kernel, bytes_), launch in best.items():
        report.row(kernel=kernel, dtype=f"{bytes_} bytes", **launch._asdict(), ms="best")


def run_benchmark(module: str, report: Report, size: Size, device: str) -> None:
    """A benchmark with its own command line; its rows, and the targets that it misses."""
    words = f"{size.lengths}" if module == "length" else f"{size.model} {size.decoding}"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        sys.argv = [module, "--device", device, "--out", str(out), *words.split()]
        importlib.import_module(f"benchmarks.{module}").main()
        result = json.loads(out.read_text(encoding="utf-8"))
    columns = {
        "length": ("n", "system", "forward_ms", "forward_backward_ms", "forward_mib"),
        "decoding": ("batch", "system", "precision", "decoding", "seconds", "tokens_per_second", "decoder_calls"),
    }[module]
    for row in result["results" if module == "length" else "decoding"]:
        report.row(**{name: row[name] for name in columns if name in row})
    for target in result["targets"]:
        if target["passed"] is False:
            report.note("goals_missed", f"{target['target']} ({target['value']:.3g})")


def _model_options(size: Size, device: str) -> Namespace:
    """The sizes of the models that decode, as the benchmark parses them."""
    from benchmarks.decoding import parsed

    sys.argv = ["gpu_check", "--device", device, *size.model.split()]
    return parsed()[0]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or "?").splitlines()[0][:300]


class Part(NamedTuple):
    """``seconds``: the most that it may take on a GPU."""

    run: Callable[[Report, Size, str], None]
    seconds: int


PARTS = {
    "environment": Part(check_environment, 60),
    "parity": Part(partial(needs_kernels, check_agreement), 200),
    "graphs": Part(check_graphs, 120),
    "ops": Part(partial(needs_kernels, check_ops), 90),
    "lengths": Part(partial(run_benchmark, "length"), 120),
    "decoding": Part(partial(run_benchmark, "decoding"), 180),
    "tuning": Part(partial(needs_kernels, tune), 400),
}


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
        report.note("failures", f"{type(error).__name__}: {_first_line(error)}")
    report.found["finished"] = True
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
    """What a part has found, with its status, passed, failed or skipped, however it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "found"), Path(folder, "log")
        Report(path).save()
        start = time.perf_counter()
        with started(_child, PARTS[name], path, log, size, device) as child:
            child.join(limit)
            hangs, code = child.is_alive(), child.exitcode
        found: Row = json.loads(path.read_text(encoding="utf-8"))
        printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if hangs:
        found["failures"].append(f"stopped: it had not finished after {limit:.0f} s")
    elif not found.pop("finished"):
        how = f"by {signal.Signals(-code).name}" if code and code < 0 else f"with status {code}"
        found["failures"].append(f"crashed: its process ended {how}")
    status = "failed" if found["failures"] else "skipped" if found["skipped"] else "passed"
    tail = {"log": printed.splitlines()[-40:]} if found["failures"] else {}
    return {"status": status, "seconds": round(time.perf_counter() - start, 1), **found, **tail}


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
    """All of it in Markdown."""
    from amlp_fairseq.training.results import markdown

    def cell(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    blocks = [f"# gpu_check on {result['device']}, {result['size']} size"]
    overview = [
        [name, part["status"], f"{part['seconds']:.0f}", str(len(part["failures"])), str(len(part["goals_missed"]))]
        for name, part in result["parts"].items()
    ]
    blocks.append(markdown(["part", "status", "s", "failures", "goals missed"], overview))
    for name, part in result["parts"].items():
        blocks.append(f"## {name}: {part['status']}" + (f", {part['skipped']}" if part["skipped"] else ""))
        for title, key in (("failed", "failures"), ("goal missed", "goals_missed")):
            lines = [f"- {title}: {text}" for text in part[key][:SHOWN]]
            lines += [f"- and {len(part[key]) - SHOWN} more"] * (len(part[key]) > SHOWN)
            blocks += ["\n".join(lines)] * bool(lines)
        columns = list(dict.fromkeys(key for row in part["rows"] for key in row))
        if columns:
            blocks.append(markdown(columns, [[cell(row.get(key, "")) for key in columns] for row in part["rows"]]))
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
