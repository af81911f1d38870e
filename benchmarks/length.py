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
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.amlp import ACTIVATIONS
from amlp_fairseq.attention.registry import ATTENTIONS
from amlp_fairseq.attention.softmax import SoftmaxAttention
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.common.arguments import positive
from amlp_fairseq.decoding import cuda_graphs
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig
from amlp_fairseq.training.environment import environment
from benchmarks.drawings import draw_length
from benchmarks.harness import (
    AGREEMENT,
    GIB,
    MIB,
    disagreement,
    finish,
    memory_limit,
    now,
    options_parser,
    parse,
    peak_extra_memory,
    rounds,
    seconds,
    verdict,
)
from benchmarks.length_results import (
    AR,
    BACKWARD,
    CORE,
    FORWARD,
    KINDS,
    LINEAR,
    SDPA,
    SYSTEMS,
    WRITTEN,
    comparison,
    crossover_table,
    crossovers,
    over_ar,
    results_table,
    targets,
)

#: What the others are compared with, by the names in the numbers.
BASES = {"ar": AR, "written_out": WRITTEN, "sdpa": SDPA}
#: The stretches of an incremental run, and the steps of each that are timed.
STRETCHES, STEPS = 8, 4
#: Where modules are compared before anything is measured.
GATE_LENGTH, GATE_BATCH = 256, 2


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
    messages = []

    def compare(what: str, expected: Tensor, out: Tensor) -> None:
        if not (error := disagreement([expected], [out])) <= AGREEMENT[dtype]:
            messages.append(f"{what} in {dtype} by {error:.1e}")

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
    return messages


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
    if messages := [message for dtype in dtypes for message in failures(modules, args, dtype)]:
        sys.exit("Attentions are wrong, nothing is measured:\n" + "\n".join(messages))
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
    print(results_table(rows), "\n")
    if AR in args.systems:
        print(f"AR's times are estimated from {STEPS} steps in each of {STRETCHES} stretches.")
        print(*over_ar(rows), sep="\n")
    print(f"scaled_dot_product_attention runs {args.sdpa}.\n")
    if crossings:
        print(crossover_table(crossings), "\n")
        print(*comparison(crossings), "", sep="\n")
    print(*(f"for information, {verdict(judged)}" for judged in result["information"]), sep="\n")
    finish(result, args, draw_length)


if __name__ == "__main__":
    main()
