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

import statistics
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.evaluation.decoding_times import Row
from amlp_fairseq.evaluation.parameters import dictionary
from amlp_fairseq.training.environment import environment
from benchmarks.crossover import crossover, crossover_text
from benchmarks.drawings import draw_long_inputs
from benchmarks.engines import Batch, Engine, Ours, Stock
from benchmarks.harness import MIB, add_sizes, finish, options_parser, parse, peak_extra_memory, rounds, seconds
from benchmarks.systems import System, Workshop, random_words
from benchmarks.tables import Column, fields, table

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


def system(name: str, longest: int) -> System:
    """A system for sentences of up to ``longest`` words."""
    arch, words = f"{name if name in WHOLE else 'cmlmc_transformer'}_wmt_en_de", []
    if name not in (BASE, *WHOLE):
        kinds = ("decoder-self", "decoder-cross", *(["encoder-self"] if name.endswith(ENCODER) else []))
        words = [f"--{kind}-attention-type {LINEAR[name.removesuffix(ENCODER)]}" for kind in kinds]
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
    batch, messages = sentence(workshop, GATE_LENGTH), []
    for name in args.systems:
        model, task, _ = workshop.built(name)
        engines = [engine(model, task, "float32", args, forced=True) for engine in (Stock, Ours)]
        stock, ours = (engine.read(engine.call(batch, args.iterations)()) for engine in engines)
        if ours != stock or len(ours[0]) != GATE_LENGTH + 1:
            messages.append(f"{name} finds {ours}, with fairseq's generator {stock}")
    return messages


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


def results_table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    columns: list[Column] = [
        ("one iteration, ms", "once_ms"),
        ("all, ms", "ms"),
        ("repeats", "repeats"),
        ("MiB", "mib"),
    ]
    columns += [(f"{what}: speed over {BASE}", f"{key}_speed_over_{BASE}") for key, what in KINDS.items()]
    return table(rows, [*fields(("n", "system")), *columns])


def crossover_table(crossings: list[Row]) -> str:
    """A line for each system."""
    columns: list[Column] = [(f"no slower than {BASE} from", "system")]
    lines = [row | {key: crossover_text(row[key]) for key in KINDS} for row in crossings]
    return table(lines, [*columns, *((what, key) for key, what in KINDS.items())])


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
    if messages := failures(workshop, args):
        sys.exit("Decoding is wrong, nothing is measured:\n" + "\n".join(messages))
    rows = [row for length in args.lengths for row in measure(engines, sentence(workshop, length), args)]
    crossings = crossovers(rows)
    print(results_table(rows), "\n")
    print(crossover_table(crossings), "\n")
    result = {
        **environment(args.device), "options": options, "results": rows, "crossovers": crossings, "targets": [],
    }  # fmt: skip
    finish(result, args, draw_long_inputs)


if __name__ == "__main__":
    main()
