"""The parts of benchmarks/gpu_check.py: what each checks and times, at which sizes.

What a part needs beyond PyTorch is imported in it: where an import fails, the other parts still run.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import math
import multiprocessing
import os
import shutil
import sys
import sysconfig
import tempfile
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.gpu_sizes import Size

Row = dict[str, Any]
forks = multiprocessing.get_context("fork")
#: The shares of a copy's bandwidth that are to be reached.
FORWARD_GOAL, BACKWARD_GOAL = 0.8, 0.75
#: Scores of the same words may differ by so much between captured and plain calls, which have other shapes.
SCORE_TOLERANCE = 1e-3


class Report:
    """The results of a part so far, in a file: those from before a crash are not lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: Row = {"rows": [], "failures": [], "goals_missed": [], "skipped": None, "finished": False}

    def row(self, **values: Any) -> None:
        self.results["rows"].append(values)
        self.save()

    def note(self, what: str, text: str) -> None:
        """``what``: one of the lists."""
        self.results[what].append(text)
        self.save()

    def skip(self, reason: str) -> None:
        self.results["skipped"] = reason
        self.save()

    def save(self) -> None:
        self.path.write_text(json.dumps(self.results), encoding="utf-8")


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
        """The errors of the output and each gradient, and those that are allowed."""
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
        return f"{type(error).__name__}: {first_line(error)}"


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
        attempts = pool.map(partial(_attempt, device=device), agreements)
        for agreement, outcome in zip(agreements, attempts, strict=True):
            where = f"{agreement.operator}, {agreement.case}, dropout {agreement.dropout}, {agreement.dtype}"
            if isinstance(outcome, str):
                report.note("failures", f"{where}: {outcome}")
                continue
            errors, allowed = outcome
            for name, error in errors.items():
                report.row(**agreement._asdict(), of=name, error=error, allowed=allowed[name])
                if not error <= allowed[name]:
                    text = f"{name} is off by {error:.1e}, {allowed[name]:.1e} is allowed"
                    report.note("failures", f"{where}: {text}")


def check_graphs(report: Report, size: Size, device: str) -> None:
    """Words and scores of the same model with and without graphs, in batches of several sizes."""
    from amlp_fairseq.decoding import cuda_graphs
    from amlp_fairseq.evaluation.parameters import dictionary
    from benchmarks.engines import Batch
    from benchmarks.systems import SYSTEMS, Workshop, random_words

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
        for (texts, length), number in itertools.product(batches, (4, 10) if plain.iterative else (1, 4)):
            batch = Batch(list(range(len(texts))), texts, length)
            expected, replayed = (engine.call(batch, number)() for engine in (plain, captured))
            pairs = list(zip(plain.read(expected), captured.read(replayed), strict=True))
            scores = [[float(sentence[0]["score"]) for sentence in result] for result in (expected, replayed)]
            differing = sum(ours != theirs for theirs, ours in pairs)
            gap = max(abs(ours - theirs) for theirs, ours in zip(*scores, strict=True))
            decoding = f"{number} calls" if plain.iterative else f"beam {number}"
            where = {"model": name, "decoding": decoding, "sentences": len(texts), "words": length}
            report.row(**where, other_words=differing, score_gap=gap)
            if not gap <= SCORE_TOLERANCE:
                report.note("failures", f"{name}, {decoding}, {len(texts)} sentences: scores differ by {gap:.1e}")


def check_ops(report: Report, size: Size, device: str) -> None:
    """Bytes that an operator must read and write, over its time, as a share of those of a copy."""
    from benchmarks.ops import median_seconds

    for dtype in size.dtypes:
        for name, work in _operators(size, device, getattr(torch, dtype)).items():
            calls = {"copy": work.copy, "forward": work.forward, "backward": work.backward}
            times = median_seconds(calls, device, size.repeats)
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


def tune(report: Report, size: Size, device: str) -> None:
    """Time each kernel's operator with every launch that compiles; the fastest are the table."""
    from amlp_fairseq.ops.launches import LAUNCHES, Launch
    from benchmarks.ops import median_seconds

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
                times[launch] = median_seconds({"call": call}, device, size.repeats)["call"]
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


def first_line(error: BaseException) -> str:
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
