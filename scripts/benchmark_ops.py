"""Time and memory of the operators dynamic_conv and light_conv against fairseq's stock modules, in one run.

    python scripts/benchmark_ops.py [--device cuda] [--dtype bfloat16] [--out FILE.json] [--plot FILE.svg]

First every awkward case of the operators must agree with float64 (else no numbers, status 1), then at every length all
systems must agree with ours. Systems are the same function of the same inputs and weights, causal, with softmax and
without dropout; DynamicConv includes the linear map that makes its weights.

- ours: dynamic_conv and light_conv; naive: the paper's formula in PyTorch
- fairseq: DynamicConv1dTBC and LightweightConv1dTBC as they choose their path; their paths expanded and unfolded
- F.conv1d: LightConv as a depthwise convolution, with the copies from and to (T, B, C)

Times are medians; the systems take turns, so that drift hits all alike. forward: without gradients; forward+backward:
with those of x and the weights. On CUDA they are the device's, between events that wait behind 1 GiB of writes: these
empty the L2 cache and hide what the host needs to launch, up to a quarter of a millisecond. Memory is the most that is
allocated at once in forward+backward beyond inputs and weights, by PyTorch's allocator: results, what is saved between
the two and all tensors inside of operators, but not what oneDNN or MKL allocate themselves. Bandwidth is that of the
operator alone, its weights given: bytes of x, weights and output over time, as a share of that of a large copy.
"""

import argparse
import gc
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from torch import Tensor

import amlp_fairseq  # noqa: F401  (mends fairseq)
from amlp_fairseq.ops.dynamic_conv import cases, dynamic_conv, light_conv
from amlp_fairseq.ops.dynamic_conv.naive import dynamic_conv_naive, light_conv_naive

GIB, MIB = 2**30, 2**20
#: How far systems may be apart on a timed shape, as a share of the largest value: float16 and bfloat16 round weights.
AGREEMENT = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
NO_CUDA = "not measured: no CUDA device in this run"
Row = dict[str, Any]


class System(NamedTuple):
    function: Callable[[], Tensor]
    needs: int  # bytes of forward+backward, estimated
    obstacle: str = ""  # why it cannot run here


class Problem(NamedTuple):
    """An operator at one length, its systems with ours first."""

    operator: str
    inputs: tuple[Tensor, Tensor]  # x, parameter
    alone: Callable[[], Tensor]  # ours, the weights given
    moved: int  # bytes that this must read and write
    systems: dict[str, System]


def parity_failures(device: str, backend: str, dtypes: set[torch.dtype]) -> list[str]:
    """The operators' cases that are too far from the exact result."""
    failures = []
    for (name, case), dtype, shared, dropout in itertools.product(
        cases.CASES.items(), dtypes, (False, True), (0.0, 0.3)
    ):
        for what, error in cases.errors(case, dtype, backend, device, shared=shared, dropout=dropout).items():
            if not error <= cases.TOLERANCES[dtype]:
                operator = "light_conv" if shared else "dynamic_conv"
                failures.append(f"{operator}, {name}, {dtype}, dropout {dropout}: {what} is off by {error:.1e}")
    return failures


def dynamic_problem(args: argparse.Namespace, length: int) -> Problem:
    module = DynamicConv1dTBC(args.channels, args.kernel, args.kernel - 1, args.heads, weight_softmax=True)
    module.to(args.device, args.dtype)
    parameter, shape = module.weight_linear.weight, (length, args.batch, args.heads, args.kernel)
    x = new_input(args, length)
    given = F.linear(x, parameter).view(shape).detach()
    sizes, padding_l = memory_needs(args, length), args.kernel - 1

    def with_linear_map(operator: Callable[..., Tensor], **options: str) -> Tensor:
        return operator(x, F.linear(x, parameter).view(shape), padding_l, **options)

    # fairseq's unfolded path cuts windows that are longer than the inputs before the softmax, not behind it.
    other = f"it is another function for T < {args.kernel}" if length < args.kernel else ""
    default = "unfolded" if length > 512 else "expanded"
    systems = {
        "ours": System(partial(with_linear_map, dynamic_conv, backend=args.backend), sizes["ours"]),
        "naive": System(partial(with_linear_map, dynamic_conv_naive), sizes["naive"]),
        "fairseq": System(partial(module, x), sizes[default]),
        "fairseq expanded": System(partial(module, x, unfold=False), sizes["expanded"]),
        "fairseq unfolded": System(partial(module, x, unfold=True), sizes["unfolded"], other),
    }
    alone = partial(dynamic_conv, x, given, padding_l, backend=args.backend)
    return Problem("DynamicConv", (x, parameter), alone, 2 * x.nbytes + given.nbytes, systems)


def light_problem(args: argparse.Namespace, length: int) -> Problem:
    module = LightweightConv1dTBC(args.channels, args.kernel, args.kernel - 1, args.heads, weight_softmax=True)
    torch.nn.init.normal_(module.weight)
    module.to(args.device, args.dtype)
    parameter, padding_l = module.weight, args.kernel - 1
    x = new_input(args, length)
    sizes = memory_needs(args, length)

    def depthwise() -> Tensor:
        weight = parameter.softmax(dim=-1).repeat_interleave(args.channels // args.heads, dim=0)
        out = F.conv1d(F.pad(x.permute(1, 2, 0), (padding_l, 0)), weight, groups=args.channels)
        return out.permute(2, 0, 1).contiguous()

    ours = partial(light_conv, x, backend=args.backend)
    systems = {
        "ours": System(lambda: ours(parameter.squeeze(1), padding_l), sizes["ours"]),
        "naive": System(lambda: light_conv_naive(x, parameter.squeeze(1), padding_l), sizes["naive"]),
        "fairseq": System(partial(module, x), sizes["expanded"]),
        "fairseq unfolded": System(partial(module, x, unfold=True), sizes["unfolded"]),
        "F.conv1d": System(depthwise, sizes["ours"]),
    }
    return Problem("LightConv", (x, parameter), systems["ours"].function, 2 * x.nbytes + parameter.nbytes, systems)


def new_input(args: argparse.Namespace, length: int) -> Tensor:
    return torch.randn(length, args.batch, args.channels).to(args.device, args.dtype).requires_grad_()


def memory_needs(args: argparse.Namespace, length: int) -> dict[str, int]:
    """Estimates of forward+backward, in bytes."""
    x = length * args.batch * args.channels * args.dtype.itemsize
    band = length * args.batch * args.heads * (length + args.kernel - 1) * args.dtype.itemsize
    return {"ours": 8 * x, "naive": 5 * args.kernel * x, "expanded": 8 * x + 4 * band, "unfolded": 3 * args.kernel * x}


def memory_limit(device: str) -> int:
    """Bytes that a system may take: half of what is free."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0] // 2
    found = re.search(r"^MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
    return int(found.group(1)) * 1024 // 2 if found else 4 * GIB


def forward(system: System) -> Tensor:
    with torch.no_grad():
        return system.function()


def forward_backward(system: System, inputs: tuple[Tensor, Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    out = system.function()
    return (out.detach(), *torch.autograd.grad(out, inputs, grad))


def disagreement(ours: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> float:
    """Largest difference of output or gradients, as a share of the largest value."""
    errors = [((a - b).abs().max() / a.abs().max()).item() for a, b in zip(ours, other, strict=True)]
    return float("nan") if any(error != error for error in errors) else max(errors)


def peak_extra_memory(function: Callable[[], Any], device: str) -> int:
    """The most bytes that are allocated at once during a call, beyond what was before it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    # The allocator tells the profiler of every block, in custom operators too, which a TorchDispatchMode does not see.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # no messages
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate((event.nbytes() for event in events), initial=0))


def seconds(function: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        result = function()
        elapsed = time.perf_counter() - start
        del result  # not timed
        return elapsed
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    scratch().zero_()
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


@cache
def scratch() -> Tensor:
    return torch.zeros(GIB, dtype=torch.uint8, device="cuda")


def copy_bandwidth(repeats: int) -> float:
    """Bytes read and written per second."""
    target, source = scratch().chunk(2)
    return 2 * source.nbytes / median_seconds({"": lambda: target.copy_(source)}, "cuda", repeats)[""]


def median_seconds(functions: dict[Any, Callable[[], Any]], device: str, repeats: int) -> dict[Any, float]:
    """They take turns; the first round warms up."""
    found: dict[Any, list[float]] = {key: [] for key in functions}
    for _ in range(repeats + 1):
        for key, function in functions.items():
            found[key].append(seconds(function, device))
    return {key: statistics.median(times[1:]) for key, times in found.items()}


def measure(problem: Problem, args: argparse.Namespace, bandwidth: float | None) -> list[Row]:
    """A row of results for each system.

    Raises:
        ValueError: if a system disagrees with ours.
    """
    x, grad = problem.inputs[0], torch.randn_like(problem.inputs[0])
    limit = memory_limit(args.device)
    rows: dict[str, Row] = {}
    functions: dict[Any, Callable[[], Any]] = {}
    reference: tuple[Tensor, ...] = ()
    for name, system in problem.systems.items():
        rows[name] = {"operator": problem.operator, "T": x.size(0), "system": name}
        obstacle = system.obstacle or (f"needs {system.needs / GIB:.1f} GiB" if system.needs > limit else "")
        if obstacle:
            rows[name]["skipped"] = obstacle
            continue
        backward = partial(forward_backward, system, problem.inputs, grad)
        result = backward()
        reference = reference or result
        if not (error := disagreement(reference, result)) <= AGREEMENT[args.dtype]:
            raise ValueError(f"{problem.operator}, T={x.size(0)}: {name} differs from ours by {error:.1e}")
        del result
        rows[name]["peak_extra_mib"] = round(peak_extra_memory(backward, args.device) / MIB, 3)
        functions |= {(name, "forward"): partial(forward, system), (name, "forward_backward"): backward}
    del reference
    for (name, what), duration in median_seconds(functions, args.device, args.repeats).items():
        rows[name][f"{what}_ms"] = round(duration * 1000, 5)
    if "skipped" not in rows["fairseq"]:
        for row in rows.values():
            add_ratios(row, rows["fairseq"])
    if bandwidth is not None and "skipped" not in rows["ours"]:
        alone = partial(forward, System(problem.alone, 0))
        duration = median_seconds({"": alone}, args.device, args.repeats)[""]
        rows["ours"]["bandwidth_share"] = round(problem.moved / duration / bandwidth, 4)
    return list(rows.values())


def add_ratios(row: Row, stock: Row) -> None:
    """How many times faster than the stock module, and the share of its memory."""
    if "skipped" not in row:
        for what in ("forward", "forward_backward"):
            row[f"{what}_speedup"] = round(stock[f"{what}_ms"] / row[f"{what}_ms"], 3)
        row["memory_share"] = round(row["peak_extra_mib"] / stock["peak_extra_mib"], 3)


def targets(rows: list[Row], args: argparse.Namespace) -> list[Row]:
    """Whether the operators are as fast and small as they are to be; ``passed`` is None where this run cannot say."""

    def target(text: str, values: list[float], bound: float, at_least: bool = True) -> Row:
        worst = (min(values) if at_least else max(values)) if values else None
        passed = None if worst is None else (worst >= bound if at_least else worst <= bound)
        return {"target": text, "value": worst, "passed": passed}

    def values(names: tuple[str, ...], which: Callable[[Row], bool]) -> list[float]:
        return [row[name] for row in rows if row["system"] == "ours" and which(row) for name in names if name in row]

    if args.device == "cuda":
        ratios = values(("forward_speedup", "forward_backward_speedup"), lambda row: row["T"] >= 16)
        return [
            target("forward at 80 % of copy bandwidth or more, T >= 256",
                   values(("bandwidth_share",), lambda row: row["T"] >= 256), 0.8),
            target("no slower than fairseq's module, T >= 16", ratios, 1.0),
        ]  # fmt: skip
    where = "DynamicConv forward+backward, T=512, C=1024, H=16, k=31"
    fits = (args.channels, args.heads, args.kernel) == (1024, 16, 31)

    def named(row: Row) -> bool:
        return fits and row["operator"] == "DynamicConv" and row["T"] == 512

    return [
        target(f"{where}: twice as fast as fairseq's", values(("forward_backward_speedup",), named), 2.0),
        target(f"{where}: half of the memory of fairseq's", values(("memory_share",), named), 0.5, at_least=False),
    ]


def table(rows: list[Row]) -> str:
    """The rows in Markdown; ratios are against fairseq's module."""
    columns = {
        "forward ms": "forward_ms", "speed-up": "forward_speedup", "forward+backward ms": "forward_backward_ms",
        "speed-up ": "forward_backward_speedup", "extra MiB": "peak_extra_mib", "share": "memory_share",
        "of copy bandwidth": "bandwidth_share",
    }  # fmt: skip
    columns = {title: key for title, key in columns.items() if any(key in row for row in rows)}
    lines = [["operator", "T", "system", *columns], ["---"] * (3 + len(columns))]
    for row in rows:
        values = [f"{row[key]:.4g}" if key in row else "" for key in columns.values()]
        if "skipped" in row:
            values[:1] = [f"skipped: {row['skipped']}"]
        lines.append([row["operator"], str(row["T"]), row["system"], *values])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Forward+backward over length, a panel for each operator."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [row for row in result["results"] if "skipped" not in row]
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for axis, operator in zip(axes, ("DynamicConv", "LightConv"), strict=True):
        chosen = [row for row in rows if row["operator"] == operator]
        for system in dict.fromkeys(row["system"] for row in chosen):
            points = [(row["T"], row["forward_backward_ms"]) for row in chosen if row["system"] == system]
            axis.plot(*zip(*points, strict=True), marker="o", label=system, linewidth=3 if system == "ours" else 1.5)
        axis.set(xscale="log", yscale="log", xlabel="T", title=operator)
        axis.set_xticks(result["options"]["lengths"], [str(length) for length in result["options"]["lengths"]])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend()
    axes[0].set_ylabel("forward+backward [ms]")
    options = "B={batch}, C={channels}, H={heads}, k={kernel}, {dtype}".format(**result["options"])
    figure.suptitle(f"{result['device']}: {options}")
    figure.savefig(path)
    pyplot.close(figure)


def environment(device: str) -> dict[str, Any]:
    """Device, versions, commit and date."""

    def git(*words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    cpu = model.group(1) if model else platform.machine()
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "not installed"
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu,
        "cuda": torch.version.cuda if device == "cuda" else NO_CUDA,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "triton": triton,
        "commit": git("rev-parse", "HEAD") or "unknown",
        "clean": git("status", "--porcelain") == "",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256, 512, 1024, 4096], metavar="T")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--channels", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kernel", type=int, default=31)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--repeats", type=int, default=10, help="timed calls of every system, after one not counted")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where all numbers go")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="where a plot goes, png or svg")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device")
    options = {name: value for name, value in vars(args).items() if name not in ("out", "plot")}
    args.dtype = getattr(torch, args.dtype)
    args.backend = "triton" if args.device == "cuda" else "torch"
    torch.set_num_threads(args.threads)
    torch.backends.cudnn.allow_tf32 = False  # float32 is to mean the same for all systems
    torch.manual_seed(1)

    failures = parity_failures(args.device, args.backend, {args.dtype, torch.float32})
    if failures:
        sys.exit("The operators are wrong, nothing is measured:\n" + "\n".join(failures))
    bandwidth = copy_bandwidth(args.repeats) if args.device == "cuda" else None
    rows: list[Row] = []
    try:
        for make in (dynamic_problem, light_problem):
            for length in args.lengths:
                rows += measure(make(args, length), args, bandwidth)
    except ValueError as error:
        sys.exit(f"The systems are not the same function, no numbers are written: {error}")
    result = {
        **environment(args.device),
        "options": options | {"backend": args.backend},
        "copy_bandwidth_gb_per_s": None if bandwidth is None else round(bandwidth / 1e9, 1),
        "results": rows,
        "targets": targets(rows, args),
    }
    print(table(rows), "\n")
    for target in result["targets"]:
        verdict = {True: "pass", False: "FAIL", None: "not measured"}[target["passed"]]
        print(f"{verdict}: {target['target']} ({target['value']})")
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.plot is not None:
        plot(result, args.plot)


if __name__ == "__main__":
    main()
