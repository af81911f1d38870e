"""Time and memory of whole CMLMC models by length, in one run.

    python -m benchmarks.long_inputs [--device cuda --precision float16] [--out FILE.json] [--plot FILE.svg]

One sentence of n words is translated into n words by the plugin's generator: encoder, iterations, projections onto the
vocabulary, one length candidate. Random weights. First, in float32, every system must find the words that fairseq's
generator finds; otherwise nothing is measured and the status is 1. Systems:

- cmlmc: softmax attention
- cmlmc_amlp_cov, cmlmc_amlp, cmlmc_abc: attentions of linear cost in the decoder, except in RePos, which is causal
- the same + encoder: in the encoder, too
- cmlmc_amlp_linear, cmlmc_abc_linear: the rows of that name, with no softmax attention anywhere

- Time: wall clock between synchronisations; medians. The systems take turns, in random order; a system is not called
  again once it has taken --seconds.
- Memory: as in ops.py, the most that is allocated at once with one iteration, beyond weights and inputs.
- Crossover: as in length.py, the length from which on a system takes no more than cmlmc.
"""

import logging
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.evaluation.parameters import dictionary
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import markdown
from benchmarks.decoding import random_words
from benchmarks.harness import add_sizes, finish, options_parser, parse, rounds
from benchmarks.labels import label_ends
from benchmarks.length import crossover, crossover_text, seconds
from benchmarks.ops import MIB, peak_extra_memory
from benchmarks.systems import Batch, Engine, Ours, Stock, System, Workshop

BASE = "cmlmc"
#: The attentions of linear cost.
LINEAR = {"cmlmc_amlp_cov": "amlp_cov", "cmlmc_amlp": "amlp_pquery", "cmlmc_abc": "abc"}
ENCODER = " + encoder"
WHOLE = ("cmlmc_amlp_linear", "cmlmc_abc_linear")
SYSTEMS = (BASE, *(name + more for name in LINEAR for more in ("", ENCODER)), *WHOLE)
#: What is timed, with the names of the results.
KINDS = {"once_ms": "one iteration", "ms": "all iterations"}
#: Words of the sentence on which the generators are compared.
GATE_LENGTH = 12
Row = dict[str, Any]


def system(name: str, longest: int) -> System:
    """A system for sentences of up to ``longest`` words."""
    arch, words = f"{name if name in WHOLE else 'cmlmc_transformer'}_wmt_en_de", []
    if name not in (BASE, *WHOLE):
        places = ("decoder-self", "decoder-cross", *(["encoder-self"] if name.endswith(ENCODER) else []))
        words = [f"--{place}-attention-type {LINEAR[name.removesuffix(ENCODER)]}" for place in places]
    words += [f"--max-{side}-positions {max(1024, longest + 2)}" for side in ("source", "target")]
    return System(Ours, arch, " ".join(words))


def build(args: Namespace) -> tuple[Workshop, dict[str, Engine]]:
    words = dictionary(4 + args.words)
    systems = {name: system(name, max(args.lengths)) for name in args.systems}
    workshop = Workshop(args, words, words, systems)
    return workshop, {name: Ours(*workshop.built(name)[:2], args.precision, args, forced=True) for name in systems}


def sentence(workshop: Workshop, length: int) -> Batch:
    return Batch([0], [random_words(length, workshop.source)], length)


def failures(workshop: Workshop, args: Namespace) -> list[str]:
    """Messages on systems that find other words than with fairseq's generator."""
    batch, found = sentence(workshop, GATE_LENGTH), []
    for name in args.systems:
        model, task, _ = workshop.built(name)
        engines = [engine(model, task, "float32", args, forced=True) for engine in (Stock, Ours)]
        stock, ours = (engine.read(engine.call(batch, args.iterations)()) for engine in engines)
        if ours != stock or len(ours[0]) != GATE_LENGTH + 1:
            found.append(f"{name} finds {ours}, with fairseq's generator {stock}")
    return found


def measure(engines: dict[str, Engine], batch: Batch, args: Namespace) -> list[Row]:
    """A row of results for each system."""
    rows: dict[str, Row] = {}
    calls: dict[tuple[str, str], Callable[[], float]] = {}
    for name, engine in engines.items():
        once, whole = (engine.call(batch, iterations) for iterations in (1, args.iterations))
        once()  # warms up
        rows[name] = {"n": batch.length, "system": name, "mib": peak_extra_memory(once, args.device) / MIB}
        calls |= {(name, key): partial(seconds, run, args.device) for key, run in (("once_ms", once), ("ms", whole))}
    for (name, key), runs in rounds(calls, args.repeats, args.seconds).items():
        rows[name] |= {key: 1000 * statistics.median(runs), key.replace("ms", "repeats"): len(runs)}
    for row in rows.values():
        row |= {f"{key}_speed_over_{BASE}": rows[BASE][key] / row[key] for key in KINDS}
    return list(rows.values())


def crossovers(rows: list[Row]) -> list[Row]:
    """For each system of linear cost, the length from which on it takes no longer than softmax attention."""

    def times(name: str, key: str) -> dict[int, float]:
        return {row["n"]: row[key] for row in rows if row["system"] == name}

    names = dict.fromkeys(row["system"] for row in rows if row["system"] != BASE)
    return [{"system": name} | {key: crossover(times(name, key), times(BASE, key)) for key in KINDS} for name in names]


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    columns = {"one iteration, ms": "once_ms", "all, ms": "ms", "repeats": "repeats", "MiB": "mib"}
    columns |= {f"{what}: speed over {BASE}": f"{key}_speed_over_{BASE}" for key, what in KINDS.items()}
    lines = [[str(row["n"]), row["system"], *(f"{row[key]:.4g}" for key in columns.values())] for row in rows]
    return markdown(["n", "system", *columns], lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Speed of all iterations over the length, relative to softmax attention."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq logs at DEBUG
    from matplotlib.figure import Figure  # of the extra "bench"

    options = result["options"]
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    for name in dict.fromkeys(row["system"] for row in result["results"]):
        points = [(row["n"], row[f"ms_speed_over_{BASE}"]) for row in result["results"] if row["system"] == name]
        axis.plot(*zip(*points, strict=True), marker="o", label=name, linewidth=3 if name == BASE else 1.5)
    ylabel = f"speed over {BASE}, {options['iterations']} iterations"
    axis.set(xscale="log", ylim=(0, None), xlabel="words of source and output", ylabel=ylabel)
    axis.set_xticks(options["lengths"], options["lengths"])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    sizes = "d={embed_dim}, {layers} layers, {words} words, {precision}, {threads} CPU threads"
    figure.supxlabel(f"{result['device']}: {sizes.format(**options)}", x=0.01, ha="left", fontsize=8, color="0.35")
    label_ends(axis)
    figure.savefig(path)


def main() -> None:
    parser = options_parser(__doc__, repeats=5, dtype=False)
    parser.add_argument(
        "--lengths", type=positive, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096], metavar="n"
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="NAME", help=f"and {BASE}")
    precisions = [*dict.fromkeys(name for names in Ours.PRECISIONS.values() for name in names)]
    parser.add_argument("--precision", choices=precisions, default="float32")
    parser.add_argument("--iterations", type=positive, default=10)
    add_sizes(parser)
    parser.add_argument("--seconds", type=float, default=60, help="no more repetitions of what has taken this long")
    args, options = parse(parser)
    if args.precision not in Ours.PRECISIONS[args.device]:
        parser.error(f"--precision {args.precision} is not one of {', '.join(Ours.PRECISIONS[args.device])}")
    options["lengths"] = args.lengths = sorted(set(args.lengths))
    options["systems"] = args.systems = list(dict.fromkeys([BASE, *args.systems]))
    args.cuda_graphs = False

    workshop, engines = build(args)
    if found := failures(workshop, args):
        sys.exit("Decoding is wrong, nothing is measured:\n" + "\n".join(found))
    rows = [row for length in args.lengths for row in measure(engines, sentence(workshop, length), args)]
    crossings = crossovers(rows)
    print(table(rows), "\n")
    lines = [[row["system"], *(crossover_text(row[key]) for key in KINDS)] for row in crossings]
    print(markdown([f"no slower than {BASE} from", *KINDS.values()], lines), "\n")
    result = {
        **environment(args.device), "options": options, "results": rows, "crossovers": crossings, "targets": [],
    }  # fmt: skip
    finish(result, args, plot)


if __name__ == "__main__":
    main()
