"""Time and memory of single attention modules by length, as in Section 3.3.2 of the AMLP paper, in one run.

    python -m benchmarks.length [--device cuda] [--dtype bfloat16] [--out FILE.json] [--plot FILE.svg]

Self-attention without padding and dropout, random weights, whole modules with their four projections. First, in float32
and in --dtype, every module must agree with its copy in float64, SDPA with the written-out softmax, and incremental
decoding with causal attention over the whole sequence; otherwise nothing is measured and the status is 1. Systems:

- AR: causal softmax attention, one position at a time with its decoding state; forward only. A run of n steps is not
  timed as a whole: n is divided into 8 stretches, in the middle of each 4 steps are timed, starting from a state of
  random keys and values, and their mean counts for the whole stretch. Memory: the state and what the last step takes
- written-out: softmax attention with its n × n matrix; SDPA: the same through PyTorch's scaled_dot_product_attention,
  by the kernel that it chooses: flash attention on a CPU and, in half precision, on CUDA
- AMLP-Cov, AMLP-PQuery, ABC, local, Performer: the registry's attentions with linear cost

- Time: wall clock between synchronisations, launching included but for ``--cuda-graphs``: the mean of the runs between
  the first and the third quartile, as in the paper, and the median. The systems take turns, in random order; a system
  is not called again once it has taken --seconds, and ``repeats`` says how often it was called. ``forward`` is without
  gradients, ``forward+backward`` with those of the inputs and of all weights, ``core`` is the forward without the
  projections.
- Memory: as in ops.py, the most that is allocated at once during a call beyond inputs and weights.
- What needs more than three quarters of the free memory, by a rough estimate, is left out: the table says so.
- Crossover: the length from which on an attention takes no more than a softmax attention, interpolated between
  measured lengths on logarithmic scales; "always" if this is so at all of them, "never" if not at the longest.
"""

import argparse
import copy
import itertools
import logging
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.amlp import ACTIVATIONS
from amlp_fairseq.attention.registry import ATTENTIONS, AttentionSpec
from amlp_fairseq.attention.softmax import SoftmaxAttention
from amlp_fairseq.common.arguments import positive
from amlp_fairseq.decoding import cuda_graphs
from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import markdown
from benchmarks.harness import finish, now, options_parser, parse, rounds, verdict
from benchmarks.labels import label_ends
from benchmarks.ops import AGREEMENT, GIB, MIB, disagreement, memory_limit, peak_extra_memory

AR, WRITTEN, SDPA = "AR", "written-out", "SDPA"
AMLP = ("AMLP-Cov", "AMLP-PQuery")
LINEAR = {
    "AMLP-Cov": "amlp_cov", "AMLP-PQuery": "amlp_pquery", "ABC": "abc", "local": "local", "Performer": "performer",
}  # fmt: skip
SYSTEMS = (AR, WRITTEN, SDPA, *LINEAR)
#: What the others are compared with, by the names in the numbers.
BASES = {"ar": AR, "written_out": WRITTEN, "sdpa": SDPA}
FORWARD, BACKWARD, CORE = KINDS = ("forward", "forward_backward", "core")
#: What crossovers are computed for.
MEASURES = {
    "forward_ms": "forward time", "forward_backward_ms": "forward+backward time", "core_ms": "core time",
    "forward_mib": "forward memory", "forward_backward_mib": "forward+backward memory",
}  # fmt: skip
#: The stretches of an incremental run, and the steps of each that are timed.
STRETCHES, STEPS = 8, 4
#: Where modules are compared before anything is measured.
GATE_LENGTH, GATE_BATCH = 256, 2
#: The targets: AMLP at LONG against the written-out softmax (590/116 in the paper), its crossover, its memory.
LONG, SPEED, SAVED, CROSSOVER, SMALLER_FROM = 8192, 5.1, 0.89, 1500, 512
#: Speed over AR at LONG in the paper, on an A100; printed beside ours.
OVER_AR = {WRITTEN: 116, **dict.fromkeys(AMLP, 590)}
Row = dict[str, Any]


class WrittenOutSoftmax(SoftmaxAttention):
    """The registry's softmax attention with its n × n matrix."""

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is None
        return ((q * self.scaling) @ k.transpose(2, 3)).softmax(dim=-1) @ v


def build(args: argparse.Namespace) -> dict[str, Any]:
    """The systems' modules, in float32; those with a softmax have the same weights."""
    options = PluginTransformerConfig(
        decoder_embed_dim=args.embed_dim,
        decoder_attention_heads=args.heads,
        attention_dropout=0.0,
        attention_inner_dim=args.inner_dim,
        attention_window=args.window,
        amlp_activation=args.activation,
    )
    spec, causal = (AttentionSpec(options, "decoder", 0, pattern) for pattern in ("noncausal self", "causal self"))
    modules = {AR: SoftmaxAttention(causal), WRITTEN: WrittenOutSoftmax(spec), SDPA: SoftmaxAttention(spec)}
    for name in (AR, WRITTEN):
        modules[name].load_state_dict(modules[SDPA].state_dict())
    modules |= {name: ATTENTIONS[registered](spec) for name, registered in LINEAR.items()}
    return {name: module.eval().to(args.device) for name, module in modules.items()}


def random(args: argparse.Namespace, length: int, batch: int) -> Tensor:
    return torch.randn(length, batch, args.embed_dim).to(args.device, args.dtype)


def by_head(x: Tensor, args: argparse.Namespace) -> Tensor:
    """(T, B, C) seen as (B, H, T, d_h)."""
    return x.unflatten(2, (args.heads, -1)).permute(1, 2, 0, 3)


def whole(module: nn.Module, x: Tensor, **arguments: Any) -> Tensor:
    return module(x, x, x, **arguments)[0]


@torch.no_grad()
def failures(modules: dict[str, Any], args: argparse.Namespace, dtype: torch.dtype) -> list[str]:
    """Messages on systems that compute wrongly."""
    modules = {name: copy.deepcopy(module).to(dtype) for name, module in modules.items()}
    x = random(args, GATE_LENGTH, min(args.batch, GATE_BATCH)).to(dtype)
    future = torch.full((len(x), len(x)), -math.inf).to(x).triu(1)
    found = []

    def compare(what: str, expected: Tensor, out: Tensor) -> None:
        if not (error := disagreement([expected], [out])) <= AGREEMENT[dtype]:
            found.append(f"{what} in {dtype} by {error:.1e}")

    def output(name: str, module: nn.Module, x: Tensor) -> Tensor:
        return whole(module, x, attn_mask=future.to(x) if name == AR else None)

    out = {name: output(name, module, x) for name, module in modules.items()}
    for name, module in modules.items():
        exact = output(name, copy.deepcopy(module).double(), x.double())
        compare(f"{name} differs from float64", exact, out[name])
    compare("SDPA differs from the written-out softmax", out[WRITTEN], out[SDPA])
    state: dict[str, Any] = {}
    steps = [whole(modules[AR], x[i : i + 1], incremental_state=state) for i in range(len(x))]
    compare("incremental decoding differs from causal attention", out[AR], torch.cat(steps))
    return found


def sdpa_kernel(modules: dict[str, Any], args: argparse.Namespace) -> str:
    """The name of the kernel that scaled_dot_product_attention runs."""
    q = by_head(random(args, GATE_LENGTH, args.batch), args)
    return torch.nn.attention.SDPBackend(torch._fused_sdp_choice(q, q, q)).name


def prefilled(module: Any, k: Tensor, v: Tensor, length: int) -> dict[str, Any]:
    """A decoding state of ``length`` positions, with room for the timed steps."""
    state = module.init_state(len(k), length + STEPS, k)
    for part, x in zip(state["kv"].unbind(2), (k, v), strict=True):
        part[:, :, :length].copy_(x[:, :, :length])
    incremental_state: dict[str, Any] = {}
    module.set_incremental_state(incremental_state, "state", {**state, "length": length})
    return incremental_state


def stretches(length: int) -> list[tuple[int, int, int]]:
    """Where each stretch of the positions begins and ends, and how many steps in its middle are timed."""
    count = min(STRETCHES, length)
    edges = [length * i // count for i in range(count + 1)]
    return [(begin, end, min(STEPS, end - begin)) for begin, end in itertools.pairwise(edges)]


@torch.no_grad()
def incremental_seconds(module: nn.Module, x: Tensor, k: Tensor, v: Tensor, device: str) -> float:
    """The time of as many steps as ``x`` has positions, estimated from some of them."""
    total = 0.0
    for begin, end, count in stretches(len(x)):
        first = (begin + end - count) // 2
        state = prefilled(module, k, v, first)
        start = now(device)
        for i in range(first, first + count):
            whole(module, x[i : i + 1], incremental_state=state)
        total += (now(device) - start) * (end - begin) / count
    return total


@torch.no_grad()
def last_step(module: nn.Module, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last step of a run, from the state before it: the two that take the most memory."""
    return whole(module, x[-1:], incremental_state=prefilled(module, k, v, len(x) - 1))


def seconds(function: Callable[[], Any], device: str) -> float:
    start = now(device)
    result = function()
    elapsed = now(device) - start
    del result  # not timed
    return elapsed


@torch.no_grad()
def forward(module: nn.Module, x: Tensor) -> Tensor:
    return whole(module, x)


def forward_backward(module: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(whole(module, x), (x, *module.parameters()), grad)


@torch.no_grad()
def core(module: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return module.attend(q, module.make_memory(k, v, None))[0]


def needs(name: str, kind: str, length: int, args: argparse.Namespace) -> int:
    """Bytes that a system allocates beyond its inputs, roughly."""
    x, inner, window, matrix = (
        length * args.batch * width
        for width in (
            4 * args.embed_dim,
            4 * args.heads * args.inner_dim,
            4 * args.heads * 2 * max(32, args.window),
            args.dtype.itemsize * args.heads * length,
        )
    )
    backward = kind == BACKWARD
    size = 10 * x + 6 * inner if backward else 8 * x + inner
    if name == AR:  # keys and values alone
        size = 3 * x
    if name == "local":
        size += 4 * x + 3 * window
    if name == WRITTEN or (name == SDPA and args.sdpa == "MATH"):
        size += (3 if backward else 2) * matrix
    return size


def quartile_mean(values: Sequence[float]) -> float:
    """The mean of what lies between the first and the third quartile."""
    quarter = len(values) // 4
    return statistics.mean(sorted(values)[quarter : len(values) - quarter])


def measure(modules: dict[str, Any], length: int, args: argparse.Namespace) -> list[Row]:
    """A row of results for each system."""
    x, grad = random(args, length, args.batch).requires_grad_(), random(args, length, args.batch)
    q, k, v = (by_head(random(args, length, args.batch), args) for _ in range(3))
    limit = memory_limit(args.device)
    rows: dict[str, Row] = {}
    calls: dict[tuple[str, str], Callable[[], float]] = {}
    for name in args.systems:
        module = modules[name]
        rows[name] = {"n": length, "system": name, "left_out": {}}
        functions: dict[str, Callable[[], Any]] = {
            FORWARD: partial(forward, module, x),
            BACKWARD: partial(forward_backward, module, x, grad),
            CORE: partial(core, module, q, k, v),
        }
        timed = {kind: partial(seconds, function, args.device) for kind, function in functions.items()}
        if name == AR:
            functions = {FORWARD: partial(last_step, module, x, k, v)}
            timed = {FORWARD: partial(incremental_seconds, module, x, k, v, args.device)}
            rows[name]["steps_timed"] = sum(count for _, _, count in stretches(length))
        for kind, function in functions.items():
            if (size := needs(name, kind, length, args)) > limit:
                rows[name]["left_out"][kind] = f"needs {size / GIB:.1f} GiB"
                continue
            function()  # warms up: kernels are compiled, the libraries take their workspaces
            rows[name][f"{kind}_mib"] = peak_extra_memory(function, args.device) / MIB
            if args.cuda_graphs and name != AR:
                replay, _, _ = cuda_graphs.capture(function, torch.device(args.device), None)
                timed[kind] = partial(seconds, replay, args.device)
            calls[name, kind] = timed[kind]
    for (name, kind), runs in rounds(calls, args.repeats, args.seconds).items():
        rows[name] |= {
            f"{kind}_ms": 1000 * quartile_mean(runs),
            f"{kind}_median_ms": 1000 * statistics.median(runs),
            f"{kind}_repeats": len(runs),
        }
    for row, (base, name), kind in itertools.product(rows.values(), BASES.items(), KINDS):
        other, ms, mib = rows.get(name, {}), f"{kind}_ms", f"{kind}_mib"
        if ms in row and ms in other:
            row[f"{kind}_speed_over_{base}"] = other[ms] / row[ms]
            row[f"{kind}_memory_over_{base}"] = row[mib] / other[mib]
    return list(rows.values())


def crossover(ours: Mapping[int, float], other: Mapping[int, float]) -> float | str | None:
    """The length from which on ours is at most the other, given values by length.

    Returns:
        "always" if it is at every common length, "never" if not at the longest, None if there is no common length.
    """
    lengths = sorted(ours.keys() & other.keys())
    if not lengths:
        return None
    gaps = [math.log(ours[n] / other[n]) for n in lengths]
    above = [i for i, gap in enumerate(gaps) if gap > 0]
    if not above:
        return "always"
    i = above[-1]
    if i == len(lengths) - 1:
        return "never"
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return math.exp((1 - share) * math.log(lengths[i]) + share * math.log(lengths[i + 1]))


def crossover_text(point: float | str) -> str:
    return point if isinstance(point, str) else f"{point:.0f}"


def crossovers(rows: list[Row]) -> list[Row]:
    """The crossovers of each linear attention with both softmax attentions, and the lengths at which it takes less."""
    found = []
    for against in (WRITTEN, SDPA):
        for name in LINEAR:
            for key, measure in MEASURES.items():
                ours, other = ({r["n"]: r[key] for r in rows if r["system"] == s and key in r} for s in (name, against))
                both = sorted(ours.keys() & other.keys())
                if both:
                    less = [n for n in both if ours[n] < other[n]]
                    row: Row = {"system": name, "against": against, "measure": measure, "lengths": both}
                    found.append(row | {"crossover": crossover(ours, other), "less_at": less})
    return found


def targets(rows: list[Row], crossings: list[Row], kind: str) -> list[Row]:
    """Whether AMLP is as good as in the paper; ``passed`` is None if this run cannot tell."""
    name_of = {FORWARD: "forward", BACKWARD: "forward+backward"}[kind]
    speed, memory = f"{kind}_speed_over_written_out", f"{kind}_memory_over_written_out"
    found = []

    def target(text: str, value: float | None, passed: bool | None) -> None:
        found.append({"target": f"{name}, {name_of}: {text}", "value": value, "passed": passed})

    for name in AMLP:
        by_length = {row["n"]: row for row in rows if row["system"] == name and memory in row}
        saved = 1 - by_length[LONG][memory] if LONG in by_length else None
        text = f"at {LONG} {100 * SAVED:.0f} % less memory than the written-out softmax"
        target(text, saved, None if saved is None else saved >= SAVED)
        gain = by_length[LONG][speed] if LONG in by_length else None
        target(f"at {LONG} {SPEED} times its speed", gain, None if gain is None else gain >= SPEED)

        value: float | None = None
        reached: bool | None = None
        for crossing in crossings:
            if (crossing["system"], crossing["against"], crossing["measure"]) == (name, WRITTEN, f"{name_of} time"):
                point, lengths = crossing["crossover"], crossing["lengths"]
                if point == "always":
                    reached = True if lengths[0] <= CROSSOVER else None
                elif point == "never":
                    reached = False if lengths[-1] >= CROSSOVER else None
                else:
                    value, reached = point, point <= CROSSOVER
        target(f"no slower than it from {CROSSOVER} positions on, or from fewer", value, reached)

        shares = [row[memory] for n, row in by_length.items() if n >= SMALLER_FROM]
        worst = max(shares, default=None)
        target(
            f"from {SMALLER_FROM} on less memory than it, as a share at most",
            worst,
            None if worst is None else worst < 1,
        )
    return found


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    columns = {
        "forward ms": "forward_ms", "median": "forward_median_ms", "repeats": "forward_repeats",
        "core ms": "core_ms", "forward+backward ms": "forward_backward_ms", "median ": "forward_backward_median_ms",
        "repeats ": "forward_backward_repeats", "forward MiB": "forward_mib",
        "forward+backward MiB": "forward_backward_mib", "speed over AR": "forward_speed_over_ar",
        "over written-out": "forward_speed_over_written_out", "over SDPA": "forward_speed_over_sdpa",
        "memory of written-out": "forward_memory_over_written_out",
    }  # fmt: skip
    left_out = {f"{kind}_ms": kind for kind in KINDS}
    lines = []
    for row in rows:
        cells = [f"{row[key]:.4g}" if key in row else "" for key in columns.values()]
        for i, key in enumerate(columns.values()):
            if reason := row["left_out"].get(left_out.get(key)):
                cells[i] = f"left out: {reason}"
        lines.append([str(row["n"]), row["system"], *cells])
    return markdown(["n", "system", *columns], lines)


def crossover_table(crossings: list[Row]) -> str:
    cells = {(c["against"], c["system"], c["measure"]): crossover_text(c["crossover"]) for c in crossings}
    lines = [
        [name, against, *(cells.get((against, name, measure), "") for measure in MEASURES.values())]
        for against, name in dict.fromkeys((c["against"], c["system"]) for c in crossings)
    ]
    return markdown(["crossover of", "against", *MEASURES.values()], lines)


def over_ar(rows: list[Row]) -> list[str]:
    """The speeds over AR that the paper reports, and ours."""
    key = "forward_speed_over_ar"
    return [
        f"{row['system']} at {LONG}: {row[key]:.3g} times as fast as AR (paper, A100: {OVER_AR[row['system']]})"
        for row in rows
        if row["n"] == LONG and row["system"] in OVER_AR and key in row
    ]


def comparison(crossings: list[Row]) -> list[str]:
    """The lengths at which AMLP takes less than SDPA, and the others."""

    def text(lengths: list[int]) -> str:
        return ", ".join(map(str, lengths)) or "none"

    return [
        f"{c['system']} against SDPA, {c['measure']}: less at {text(c['less_at'])}; "
        f"no less at {text([n for n in c['lengths'] if n not in c['less_at']])}"
        for c in crossings
        if c["against"] == SDPA and c["system"] in AMLP
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """Time and memory of the forward over the length, as shares of AR's if all lengths have them."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq logs at DEBUG
    from matplotlib.figure import Figure  # of the extra "bench"

    options = result["options"]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axis, (key, what, unit) in zip(
        figure.subplots(1, 2), (("forward_ms", "time", "ms"), ("forward_mib", "memory", "MiB")), strict=True
    ):
        rows = [row for row in result["results"] if key in row]
        base = {row["n"]: row[key] for row in rows if row["system"] == AR}
        relative = base.keys() >= {row["n"] for row in rows}
        for name in dict.fromkeys(row["system"] for row in rows):
            points = [(r["n"], r[key] / (base[r["n"]] if relative else 1)) for r in rows if r["system"] == name]
            axis.plot(*zip(*points, strict=True), marker="o", label=name, linewidth=3 if name in AMLP else 1.5)
        axis.set(xscale="log", yscale="log", xlabel="n", ylabel=f"{what} / AR's" if relative else f"{what} [{unit}]")
        axis.set_xticks(options["lengths"], options["lengths"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    sizes = "forward, B={batch}, d={embed_dim}, H={heads}, c={inner_dim}, {activation}, {dtype}, {threads} CPU threads"
    longest = [row for row in result["results"] if row["n"] == max(options["lengths"]) and "forward_ms" in row]
    if longest:
        fast, slow = (choose(longest, key=lambda row: row["forward_ms"]) for choose in (min, max))
        title = f"At {fast['n']:,} positions {fast['system']} takes {fast['forward_ms']:.3g} ms"
        figure.suptitle(f"{title}, {slow['system']} {slow['forward_ms']:,.0f}", x=0.01, ha="left", fontweight="bold")
    figure.supxlabel(f"{result['device']}: {sizes.format(**options)}", x=0.01, ha="left", fontsize=8, color="0.35")
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        label_ends(axis)
    figure.savefig(path)


def main() -> None:
    parser = options_parser(__doc__, repeats=100)
    parser.add_argument("--lengths", type=positive, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192], metavar="n")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), metavar="NAME")
    for name, default in (("batch", 12), ("embed-dim", 512), ("heads", 8)):
        parser.add_argument(f"--{name}", type=positive, default=default)
    parser.add_argument("--inner-dim", type=positive, default=64, help="c of AMLP, ABC and Performer")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu", help="of AMLP")
    parser.add_argument("--window", type=positive, default=31, help="positions that each sees in local attention")
    parser.add_argument("--seconds", type=float, default=10, help="no more repetitions of what has taken this long")
    words = "time calls as CUDA graphs, without what the CPU takes to launch them"
    parser.add_argument("--cuda-graphs", action="store_true", help=words)
    args, options = parse(parser)
    if args.cuda_graphs and args.device not in cuda_graphs.CAPTURING:
        parser.error("--cuda-graphs needs --device cuda")
    options["lengths"] = args.lengths = sorted(set(args.lengths))

    modules = build(args)
    dtypes = dict.fromkeys((torch.float32, args.dtype))
    if found := [failure for dtype in dtypes for failure in failures(modules, args, dtype)]:
        sys.exit("Attentions are wrong, nothing is measured:\n" + "\n".join(found))
    for module in modules.values():
        module.to(args.dtype)
    args.sdpa = sdpa_kernel(modules, args)
    rows = [row for length in args.lengths for row in measure(modules, length, args)]
    crossings = crossovers(rows)
    result = {
        **environment(args.device),
        "options": options,
        "sdpa_kernel": args.sdpa,
        "results": rows,
        "crossovers": crossings,
        "targets": targets(rows, crossings, FORWARD),
        "information": targets(rows, crossings, BACKWARD),
    }
    print(table(rows), "\n")
    if AR in args.systems:
        print(f"AR's times are estimated from {STEPS} steps in each of {STRETCHES} stretches.")
        print(*over_ar(rows), sep="\n")
    print(f"scaled_dot_product_attention runs {args.sdpa}.\n")
    if crossings:
        print(crossover_table(crossings), "\n")
        print(*comparison(crossings), "", sep="\n")
    print(*(f"for information, {verdict(target)}" for target in result["information"]), sep="\n")
    finish(result, args, plot)


if __name__ == "__main__":
    main()
