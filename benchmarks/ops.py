"""Time and memory of the operators dynamic_conv and light_conv against fairseq's stock modules, in one run.

    python -m benchmarks.ops [--device cuda] [--dtype bfloat16] [--out FILE.json] [--plot FILE.svg]

First the operators must agree with float64 in all difficult cases, and at every length all systems with ours; otherwise
there are no numbers and the status is 1. All systems compute the same function of the same inputs and weights, causal,
with softmax and without dropout; DynamicConv includes the linear map that makes its weights.

- ours: dynamic_conv and light_conv; naive: the paper's formula in PyTorch
- fairseq: DynamicConv1dTBC and LightweightConv1dTBC on the path that they choose, and on their paths expanded, unfolded
- F.conv1d: LightConv as a depthwise convolution, with the copies from and to (T, B, C)

- Time: medians. The systems take turns, in random order, so that drift and caches affect all alike. ``forward`` is
  without gradients, ``forward+backward`` with those of x and the weights. On CUDA it is the device's time, between
  events queued after 1 GiB of writes, which empty the L2 cache and cover about a quarter of a millisecond of launching.
- Memory: the most that PyTorch's allocator holds at once in forward+backward beyond inputs and weights: results, what
  is saved between the two, and all tensors inside operators; not what oneDNN or MKL allocate themselves.
- Bandwidth: of the operator alone, with given weights: bytes of x, weights and output over the time of forward, as a
  share of the bandwidth of a large copy.
- Ratios: fairseq's time or memory over the system's, more is better.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.modules.dynamic_convolution import DynamicConv1dTBC
from fairseq.modules.lightweight_convolution import LightweightConv1dTBC
from torch import Tensor

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.ops.dynamic_conv import cases, dynamic_conv, light_conv
from amlp_fairseq.ops.dynamic_conv.naive import dynamic_conv_naive, light_conv_naive
from amlp_fairseq.training.environment import environment
from benchmarks.drawings import draw_ops
from benchmarks.harness import (
    AGREEMENT,
    GIB,
    MIB,
    Key,
    disagreement,
    finish,
    memory_limit,
    options_parser,
    parse,
    peak_extra_memory,
    rounds,
    seconds,
    target,
)
from benchmarks.tables import fields, table

#: Columns of the table.
COLUMNS = (
    ("forward ms", "forward_ms"), ("ratio", "forward_ratio"), ("forward+backward ms", "forward_backward_ms"),
    ("ratio", "forward_backward_ratio"), ("extra MiB", "memory_mib"), ("ratio", "memory_ratio"),
    ("of copy bandwidth", "bandwidth_share"),
)  # fmt: skip
System = Callable[[], Tensor]


class Problem(NamedTuple):
    """An operator at one length."""

    operator: str
    inputs: tuple[Tensor, Tensor]  # x, parameter
    systems: dict[str, System]  # ours first
    alone: System  # ours, with weights that are made before
    moved: int  # bytes that it must read and write


def parity_failures(device: str, backend: str, dtypes: set[torch.dtype]) -> list[str]:
    """The operators' cases that are too far from the exact result."""
    failures = []
    grid = itertools.product(cases.CASES, sorted(dtypes, key=str), (False, True), (0.0, 0.3))
    for name, dtype, shared, dropout in grid:
        options: dict[str, Any] = {"shared": shared, "dropout": dropout}
        errors = cases.errors(cases.CASES[name], dtype, backend, device, **options)
        allowed = cases.tolerances(cases.CASES[name], dtype, device, **options)
        for what, error in errors.items():
            if not error <= allowed[what]:
                operator = "light_conv" if shared else "dynamic_conv"
                failures.append(f"{operator}, {name}, {dtype}, dropout {dropout}: {what} is off by {error:.1e}")
    return failures


def dynamic_problem(args: argparse.Namespace, x: Tensor) -> Problem:
    padding_l = args.kernel - 1
    module = DynamicConv1dTBC(args.channels, args.kernel, padding_l, args.heads, weight_softmax=True).to(x)
    parameter = module.weight_linear.weight

    def weight() -> Tensor:
        return F.linear(x, parameter).view(*x.shape[:2], args.heads, args.kernel)

    fixed = weight().detach()
    systems: dict[str, System] = {
        "ours": lambda: dynamic_conv(x, weight(), padding_l, backend=args.backend),
        "naive": lambda: dynamic_conv_naive(x, weight(), padding_l),
        "fairseq": partial(module, x),
        "fairseq expanded": partial(module, x, unfold=False),
        "fairseq unfolded": partial(module, x, unfold=True),
    }
    alone = partial(dynamic_conv, x, fixed, padding_l, backend=args.backend)
    return Problem("DynamicConv", (x, parameter), systems, alone, 2 * x.nbytes + fixed.nbytes)


def light_problem(args: argparse.Namespace, x: Tensor) -> Problem:
    padding_l = args.kernel - 1
    module = LightweightConv1dTBC(args.channels, args.kernel, padding_l, args.heads, weight_softmax=True).to(x)
    parameter = torch.nn.init.normal_(module.weight)  # (H, 1, k)

    def depthwise() -> Tensor:
        weight = parameter.softmax(dim=-1).repeat_interleave(args.channels // args.heads, dim=0)
        out = F.conv1d(F.pad(x.permute(1, 2, 0), (padding_l, 0)), weight, groups=args.channels)
        return out.permute(2, 0, 1).contiguous()

    systems: dict[str, System] = {
        "ours": lambda: light_conv(x, parameter.squeeze(1), padding_l, backend=args.backend),
        "naive": lambda: light_conv_naive(x, parameter.squeeze(1), padding_l),
        "fairseq": partial(module, x),
        "fairseq unfolded": partial(module, x, unfold=True),
        "F.conv1d": depthwise,
    }
    return Problem("LightConv", (x, parameter), systems, systems["ours"], 2 * x.nbytes + parameter.nbytes)


def obstacle(problem: Problem, system: str, args: argparse.Namespace, limit: int) -> str:
    """The reason why a system cannot run; "" if it can."""
    x, dynamic = problem.inputs[0], problem.operator == "DynamicConv"
    if system == "fairseq unfolded" and dynamic and len(x) < args.kernel:
        # It cuts windows longer than the inputs before the softmax, not after it.
        return f"another function where T < {args.kernel}"
    if system == "fairseq":  # the path that it takes
        system += " unfolded" if dynamic and len(x) > 512 else " expanded"
    windows, band = args.kernel * x.nbytes, (len(x) + args.kernel - 1) * args.heads * x.nbytes // args.channels
    large = {"naive": 2 * windows, "fairseq expanded": 2 * band, "fairseq unfolded": 3 * windows}
    needs = 8 * x.nbytes + large.get(system, 0)  # of forward+backward, roughly
    return f"needs {needs / GIB:.1f} GiB" if needs > limit else ""


def forward(system: System) -> Tensor:
    with torch.no_grad():
        return system()


def forward_backward(system: System, inputs: tuple[Tensor, Tensor], grad: Tensor) -> list[Tensor]:
    """The output and the gradients."""
    out = system()
    return [out.detach(), *torch.autograd.grad(out, inputs, grad)]


def device_seconds(function: Callable[[], object], device: str) -> float:
    """Seconds of a call: on CUDA the device's own, without launching, and with an empty L2 cache."""
    if device == "cpu":
        return seconds(function, device)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(8):  # out of the caches with what was read before, and time for the CPU to launch what follows
        scratch().zero_()
    begin.record()
    function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


@cache
def scratch() -> Tensor:
    return torch.zeros(GIB, dtype=torch.uint8, device="cuda")


def median_seconds(functions: Mapping[Key, Callable[[], object]], device: str, repeats: int) -> dict[Key, float]:
    """Medians of the device's times; all take turns, and the first round warms up."""
    calls = {key: partial(device_seconds, function, device) for key, function in functions.items()}
    return {key: statistics.median(times[1:]) for key, times in rounds(calls, repeats + 1).items()}


def copy_bandwidth(args: argparse.Namespace) -> float:
    """Bytes read and written per second."""
    copy, source = scratch().chunk(2)
    return 2 * source.nbytes / median_seconds({"copy": lambda: copy.copy_(source)}, args.device, args.repeats)["copy"]


def measure(problem: Problem, args: argparse.Namespace, bandwidth: float | None) -> list[Row]:
    """A row of results for each system. Ends the program if one disagrees with ours."""
    x, grad = problem.inputs[0], torch.randn_like(problem.inputs[0])
    limit = memory_limit(args.device)
    rows: dict[str, Row] = {}
    functions: dict[tuple[str, str], Callable[[], Any]] = {}
    reference: list[Tensor] = []
    for name, system in problem.systems.items():
        rows[name] = {"operator": problem.operator, "T": len(x), "system": name}
        if reason := obstacle(problem, name, args, limit):
            rows[name]["skipped"] = reason
            continue
        backward = partial(forward_backward, system, problem.inputs, grad)
        result = backward()
        reference = reference or result
        if not (error := disagreement(reference, result)) <= AGREEMENT[x.dtype]:
            sys.exit(f"{problem.operator}, T={len(x)}: {name} differs from ours by {error:.1e}, no numbers are written")
        del result
        rows[name]["memory_mib"] = peak_extra_memory(backward, args.device) / MIB
        functions |= {(name, "forward"): partial(forward, system), (name, "forward_backward"): backward}
    del reference
    for (name, what), duration in median_seconds(functions, args.device, args.repeats).items():
        rows[name][f"{what}_ms"] = duration * 1000
    for row in rows.values():
        for key in {"forward_ms", "forward_backward_ms", "memory_mib"} & row.keys() & rows["fairseq"].keys():
            row[key.rpartition("_")[0] + "_ratio"] = rows["fairseq"][key] / row[key]
    if bandwidth is not None and "skipped" not in rows["ours"]:
        duration = median_seconds({"alone": partial(forward, problem.alone)}, args.device, args.repeats)["alone"]
        rows["ours"]["bandwidth_share"] = problem.moved / duration / bandwidth
    return list(rows.values())


def targets(rows: list[Row], args: argparse.Namespace) -> list[Row]:
    """The targets for speed and memory; ``passed`` is None if this run cannot tell."""

    def at_least(bound: float, text: str, keys: list[str], applies: Callable[[Row], bool]) -> Row:
        chosen = [row for row in rows if row["system"] == "ours" and applies(row)]
        worst = min((row[key] for row in chosen for key in keys if key in row), default=None)
        return target(text, worst, None if worst is None else worst >= bound)

    def usual(row: Row) -> bool:
        sizes = (row["operator"], row["T"], args.channels, args.heads, args.kernel)
        return sizes == ("DynamicConv", 512, 1024, 16, 31)

    if args.device == "cuda":
        share, times = ["bandwidth_share"], ["forward_ratio", "forward_backward_ratio"]
        return [
            at_least(0.8, "T >= 256: forward at 80 % of copy bandwidth", share, lambda row: row["T"] >= 256),
            at_least(1, "T >= 16: no slower than fairseq's module", times, lambda row: row["T"] >= 16),
        ]
    where = "DynamicConv forward+backward, T=512, C=1024, H=16, k=31"
    return [
        at_least(2, f"{where}: twice as fast as fairseq's", ["forward_backward_ratio"], usual),
        at_least(2, f"{where}: half of the memory of fairseq's", ["memory_ratio"], usual),
    ]


def results_table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    columns = [(title, key) for title, key in COLUMNS if any(key in row for row in rows)]

    def first(row: Row) -> object:
        return f"skipped: {row['skipped']}" if "skipped" in row else row.get("forward_ms")

    return table(rows, [*fields(("operator", "T", "system")), (columns[0][0], first), *columns[1:]])


def main() -> None:
    parser = options_parser(__doc__, repeats=10)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[16, 64, 256, 512, 1024, 4096], metavar="T")
    parser.add_argument("--batch", type=positive, default=8)
    parser.add_argument("--channels", type=positive, default=1024)
    parser.add_argument("--heads", type=positive, default=16)
    parser.add_argument("--kernel", type=positive, default=31)
    args, options = parse(parser)
    if args.channels % args.heads:
        parser.error("the heads must divide the channels")
    args.backend = "triton" if args.device == "cuda" else "torch"

    failures = parity_failures(args.device, args.backend, {args.dtype, torch.float32})
    if failures:
        sys.exit("The operators are wrong, nothing is measured:\n" + "\n".join(failures))
    bandwidth = copy_bandwidth(args) if args.device == "cuda" else None
    rows: list[Row] = []
    for make in (dynamic_problem, light_problem):
        for length in args.lengths:
            x = torch.randn(length, args.batch, args.channels).to(args.device, args.dtype).requires_grad_()
            rows += measure(make(args, x), args, bandwidth)
    result = {
        **environment(args.device),
        "options": options | {"backend": args.backend},
        "copy_gb_per_second": bandwidth and bandwidth / 1e9,
        "results": rows,
        "targets": targets(rows, args),
    }
    print(results_table(rows), "\n")
    finish(result, args, draw_ops)


if __name__ == "__main__":
    main()
