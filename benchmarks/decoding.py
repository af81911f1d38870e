"""Decoding time of whole translation systems, ours and others', in one run.

    python -m benchmarks.decoding [--systems NAME …] [--out FILE.json] [--plot FILE.svg]
    python -m benchmarks.decoding --data DIR --checkpoint NAME=PATH … [--systems NAME …]

First, in float32 and with the same weights, our search with h = c = 1 must find the words of stock fairseq's at beam 1
and 4, CTranslate2 at beam 1, and every system must write as many words as it is told; otherwise nothing is measured and
the status is 1. Systems:

- transformer: fairseq's Transformer and search, with its cache; ctranslate2: the same weights in CTranslate2; ar: the
  same weights in the multi-word search. -student: 2 layers in the decoder; -deep: 12 in the encoder, 1 in the decoder
- ar-drafts: ar greedily with drafts of an ibdecoder-sa-student with the same encoder; so many of its own words are
  verified in a call as in one of the trained models of examples/models (systems.py)
- ibdecoder: (h, c) = (2, 1); ibdecoder-sa: (2, 2); -rescored: ar, with weights of its own, reranks the hypotheses
- cmlm: fairseq's, with its generator; cmlmc, cmlmc-amlp: ours
- aan, ssru, dynamicconv: ours, from left to right; -tiny: 1 layer in the decoder
- all of these have random weights
- --checkpoint: trained models on the test set of a folder of amlp-fairseq prepare, with BLEU, also by length of the
  source; Transformers also as NAME-ctranslate2. Without --force-length their outputs may have any length up to 200
  words; refinement stops when nothing changes and has --length-beam candidates. The length penalty is 1

- Lengths: random weights say nothing about lengths, so every system writes as many words as the reference has. Batches
  have sentences of similar length, and all are as long as the longest reference, because fairseq's limits are for whole
  batches; CTranslate2 writes a word in place of the end symbol. Refinement makes as many decoder calls as it is told.
  Without --data the lengths of sources are the quantiles of a log-normal distribution with a mean of 28 words, and
  those of targets differ from them by 15 %.
- Time: wall clock between synchronisations, of the generator's call with the encoder, without loading, dictionaries and
  batching. CTranslate2 is in a process of its own (ctranslate2_worker.py says why), and its pipe is timed with it; it
  has one thread or --threads, whichever is faster. For each batch all systems and settings take turns, in
  random order, after a warm-up of each; its time is the median over --repeats. Percentiles (5, 50, 95) are over
  batches: at batch size 1, latencies of sentences. A speed-up is the median over batches of the baseline's time for
  the batch over the system's own, with quartiles. Times are disturbed where repeats differ much, where a call had to
  wait for a CPU, and where other processes used the CPUs (quiet.py); the table and the file say so.
- --out is written anew after each batch of sentences: what has been measured is kept if the program ends early.
- Tokens are words and end symbols; decoder calls are counted in the warm-up (for CTranslate2: the length of its longest
  output); peak memory is what PyTorch allocates beyond weights and inputs during the batch with the most words.
- Bound: the time to read from memory what a call of ar's decoder needs in float32: the weights of its layers except the
  projections of the source's keys and values, the output projection, the keys and values of the words so far (on
  average) and, once for all hypotheses, of the source. Bandwidth: summing a tensor of 512 MiB in the same rounds. Step:
  the time of the sentence of median length less that of one word, per decoder call; start: the rest, with the encoder.
  All are medians over rounds, also the ratio of step and bound. On a CPU a stopwatch (step_parts.py) splits a step into
  its parts, in separate runs with layers that are called from Python: they say what a step consists of, and their sum
  is not its time.
- Training: forward, backward and update of a Transformer and an IBDecoder in float32 on the same sentences, both with
  dropout and attention dropout 0.1.
"""

import os
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import __version__ as fairseq_version
from fairseq.models.transformer import TransformerModel

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.evaluation.decoding_times import Row, add_speedups
from amlp_fairseq.evaluation.parameters import dictionary
from amlp_fairseq.training.environment import environment
from benchmarks import quiet
from benchmarks.ctranslate2_engine import CTranslate
from benchmarks.decoding_costs import measure_bound, measure_training, sentence_lengths
from benchmarks.decoding_tables import tables
from benchmarks.drawings import draw_decoding
from benchmarks.engines import Batch, Engine, Stock, TimedCall
from benchmarks.harness import MIB, add_sizes, finish, now, options_parser, parse, peak_extra_memory, rounds, write
from benchmarks.systems import SYSTEMS, Built, Workshop, engine_of, random_words
from benchmarks.targets import PRECISIONS, targets
from benchmarks.trained import TestSet, load

#: Latencies are given by length of the source, in bins with these edges, in words.
BINS = (10, 20, 30, 40, 50)
#: Lengths of the sources, and of the outputs, on which the systems are compared before anything is measured.
GATE_SOURCES, GATE_LENGTH = (4, 7, 11), 8


class Setting(NamedTuple):
    """A system in one precision with one beam or number of iterations."""

    system: str
    precision: str
    decoding: str

    def __str__(self) -> str:
        return " ".join(self)


def build_engines(
    workshop: Workshop, systems: Iterable[str], checkpoints: dict[str, Built], args: Namespace
) -> tuple[dict[tuple[str, str], Engine], list[Row]]:
    """An engine for each system in each precision that it has, and what is skipped."""
    plans: list[tuple[str, type[Engine], Built, bool]] = []
    for name in systems:
        plans.append((name, SYSTEMS[name].engine, workshop.built(name), True))
    for name, built in checkpoints.items():
        plans.append((name, engine_of(type(built.model)), built, args.force_length))
        if type(built.model) is TransformerModel:
            plans.append((f"{name}-ctranslate2", CTranslate, built, args.force_length))
    engines: dict[tuple[str, str], Engine] = {}
    skipped = []
    for name, engine, built, forced in plans:
        for precision in args.precisions:
            if precision not in engine.PRECISIONS[args.device]:
                continue
            if reason := engine.lacks(precision, args.device):
                skipped.append({"system": name, "precision": precision, "reason": reason})
            else:
                engines[name, precision] = engine(built.model, built.task, precision, args, forced)
    return engines, skipped


def settings_of(engines: dict[tuple[str, str], Engine], args: Namespace) -> dict[Setting, tuple[Engine, int]]:
    """Every engine with each of its beams or numbers of iterations."""
    return {
        Setting(name, precision, f"{number} iterations" if engine.iterative else f"beam {number}"): (engine, number)
        for (name, precision), engine in engines.items()
        for number in engine.numbers(args)
    }


def in_batches(sources: list[list[int]], lengths: list[int], size: int) -> list[Batch]:
    """Sentences of similar length together."""
    order = sorted(range(len(sources)), key=lambda i: (lengths[i], len(sources[i])))
    chunks = [order[i : i + size] for i in range(0, len(order), size)]
    return [Batch(chunk, [sources[i] for i in chunk], max(lengths[i] for i in chunk)) for chunk in chunks]


def written(engine: Engine, batch: Batch, result: Any) -> list[list[int]]:
    """The outputs of a run.

    Raises:
        ValueError: if an output does not have the length that it should.
    """
    outputs = engine.read(result)
    if engine.forced and {len(tokens) for tokens in outputs} != {batch.length + 1}:
        raise ValueError(f"{[len(tokens) - 1 for tokens in outputs]} words instead of {batch.length}")
    return outputs


def failures(engines: dict[tuple[str, str], Engine], workshop: Workshop, args: Namespace) -> list[str]:
    """Messages on systems that decode wrongly."""
    sources = [random_words(count, workshop.source) for count in GATE_SOURCES]
    batch, problems = Batch(list(range(len(sources))), sources, GATE_LENGTH), []

    def words(engine: Engine, number: int) -> list[list[int]]:
        outputs = written(engine, batch, engine.call(batch, number)())
        return [tokens[:GATE_LENGTH] for tokens in outputs]  # CTranslate2 has no end symbol

    for (name, precision), engine in engines.items():
        system = SYSTEMS[name] if name in args.systems else None  # else a checkpoint
        for number in engine.numbers(Namespace(iterations=args.iterations, beams=(1, 4))):
            try:
                output = words(engine, number)
            except ValueError as error:
                problems.append(f"{name} {precision}: writes {error}")
                continue
            if system and system.like and precision == "float32" and number in engine.EXACT_BEAMS:
                stock = Stock(*workshop.built(system.like)[:2], precision, args, forced=True)
                if output != words(stock, number):
                    problems.append(f"{name}: other words than stock fairseq's with the same weights at beam {number}")
    return problems


def watched(run: TimedCall, device: str, processes: list[int]) -> tuple[quiet.Timing, Any]:
    return quiet.timed(run, partial(now, device), processes)


def longest_source(batch: Batch) -> int:
    return max(map(len, batch.sources))


def length_bin(length: int) -> str:
    """The name of the bin that a length is in."""
    below = [edge for edge in BINS if edge <= length]
    if not below:
        return f"<{BINS[0]}"
    return f"{below[-1]}-{BINS[len(below)] - 1}" if len(below) < len(BINS) else f"{BINS[-1]}+"


def by_length(sources: list[list[int]]) -> dict[str, list[int]]:
    """The sentences of each bin."""
    bins: dict[str, list[int]] = {}
    for i in sorted(range(len(sources)), key=lambda i: len(sources[i])):
        bins.setdefault(length_bin(len(sources[i])), []).append(i)
    return bins


def measure(
    settings: dict[Setting, tuple[Engine, int]],
    batches: list[Batch],
    args: Namespace,
    keep: Callable[[list[Row]], None],
) -> list[tuple[Row, dict[int, list[int]]]]:
    """The numbers of each setting, and its outputs by sentence. ``keep`` is given the numbers after each batch."""
    totals = {key: {"tokens": 0, "decoder_calls": 0} for key in settings}
    timings: dict[Setting, list[list[quiet.Timing]]] = {key: [] for key in settings}
    workers = [engine.worker.process.pid for engine, _ in settings.values() if isinstance(engine, CTranslate)]
    threads = {
        key: engine.worker.threads if isinstance(engine, CTranslate) else torch.get_num_threads()
        for key, (engine, _) in settings.items()
    }

    def row_of(key: Setting) -> Row:
        row = key._asdict() | totals[key] | summary(timings[key], batches[: len(timings[key])])
        return row | {"threads": threads[key], "tokens_per_second": row["tokens"] / row["seconds"]}

    outputs: dict[Setting, dict[int, list[int]]] = {key: {} for key in settings}
    for i, batch in enumerate(batches):
        calls = {}
        for key, (engine, number) in settings.items():
            run = engine.call(batch, number)
            result, decoder_calls = engine.watch(run)
            tokens = written(engine, batch, result)
            outputs[key].update(zip(batch.indices, tokens, strict=True))
            totals[key]["tokens"] += sum(map(len, tokens))
            totals[key]["decoder_calls"] += decoder_calls
            calls[key] = partial(watched, run, args.device, workers)
        for key, runs in rounds(calls, args.repeats, seed=i).items():
            for _, result in runs:
                written(settings[key][0], batch, result)
            timings[key].append([timing for timing, _ in runs])
        keep([row_of(key) for key in settings])
    largest = max(batches, key=lambda batch: len(batch.sources) * batch.length)
    results = []
    for key, (engine, number) in settings.items():
        row = row_of(key)
        if order := getattr(engine.task, "order", None):
            row |= {"directions": order.num_directions, "words_per_direction": order.words_per_direction}
        if not isinstance(engine, CTranslate):
            row["peak_mib"] = peak_extra_memory(engine.call(largest, number), args.device) / MIB
        results.append((row, outputs[key]))
    return results


def summary(timings: list[list[quiet.Timing]], batches: list[Batch]) -> Row:
    """Totals, percentiles and medians by length, from the times of each batch, and what speaks against them."""
    ms = [1000 * statistics.median(timing.wall for timing in repeats) for repeats in timings]
    bins: dict[str, list[float]] = {}
    for batch, duration in sorted(zip(batches, ms, strict=True), key=lambda pair: longest_source(pair[0])):
        bins.setdefault(length_bin(longest_source(batch)), []).append(duration)
    sentences, total = sum(len(batch.sources) for batch in batches), sum(ms) / 1000
    return {
        "sentences": sentences,
        "seconds": total,
        "sentences_per_second": sentences / total,
        "ms_percentiles": np.percentile(ms, [5, 50, 95]).tolist(),
        "ms_by_source_length": {name: statistics.median(values) for name, values in bins.items()},
        "ms": ms,
        "ms_repeats": [[1000 * timing.wall for timing in repeats] for repeats in timings],
        "disturbed": quiet.disturbances(timings, len(os.sched_getaffinity(0))),
    }


def parsed() -> tuple[Namespace, dict[str, Any]]:
    """The options, and a copy to store with the numbers."""
    parser = options_parser(__doc__, repeats=3, dtype=False)
    add = parser.add_argument
    add("--systems", nargs="+", choices=SYSTEMS, metavar="NAME", help=f"of {', '.join(SYSTEMS)} (default: all)")
    add("--precisions", nargs="+", choices=PRECISIONS, help="(default: float32 and int8, on CUDA float32 and float16)")
    add_sizes(parser)
    add("--sentences", type=positive, help="(default: 24; with --data the whole test set)")
    add("--batches", type=positive, nargs="+", default=[1], help="sentences in a batch")
    add("--beams", type=positive, nargs="+", default=[4, 1])
    add("--iterations", type=positive, nargs="+", default=[10, 4], help="decoder calls of iterative refinement")
    add("--baseline", metavar="'SYSTEM PRECISION DECODING'", help="baseline of speed-ups (default: the first row)")
    add("--training", type=positive, metavar="TOKENS", help="also time training, with that many words per batch")
    add("--data", metavar="DIR", help="translate its test set")
    add("--checkpoint", nargs="+", default=[], metavar="NAME=PATH", help="trained models, for --data")
    add("--length-beam", type=positive, default=1, help="candidates of different lengths, where lengths are not forced")
    add("--force-length", action="store_true", help="use the references' lengths for trained models, too")
    add("--cuda-graphs", action="store_true", help="for our systems, where supported")
    args, options = parse(parser)
    args.precisions = args.precisions or ["float32", "int8" if args.device == "cpu" else "float16"]
    if args.systems is None:
        args.systems = [] if args.data else list(SYSTEMS)
    options |= {"precisions": args.precisions, "systems": args.systems}
    if args.checkpoint and args.data is None:
        parser.error("--checkpoint needs --data")
    if any("=" not in checkpoint for checkpoint in args.checkpoint):
        parser.error("--checkpoint takes NAME=PATH")
    names = [*args.systems, *(checkpoint.partition("=")[0] for checkpoint in args.checkpoint)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        parser.error(f"--systems and --checkpoint: two systems have the name {twice[0]}")
    if args.words < 2 * max(args.beams):
        parser.error("--words must be at least twice the largest beam")
    return args, options


def main() -> None:
    args, options = parsed()
    checkpoints = {}
    for checkpoint in args.checkpoint:
        name, _, path = checkpoint.partition("=")
        checkpoints[name] = load(path, args.data, args.device)
    test = None
    if args.data is not None:
        test = TestSet(args.data, [built.task for built in checkpoints.values()], args.sentences)
        source, target, sources, lengths = test.source, test.target, test.sources, test.lengths
    else:
        source = target = dictionary(4 + args.words)
        pairs = sentence_lengths(args.sentences or 24)
        sources, lengths = [random_words(count, source) for count, _ in pairs], [count for _, count in pairs]
    workshop = Workshop(args, source, target)
    engines, skipped = build_engines(workshop, args.systems, checkpoints, args)
    settings = settings_of(engines, args)
    if not settings:
        sys.exit(f"there is nothing to measure; skipped: {skipped}")
    baseline = args.baseline or str(next(iter(settings)))
    if baseline not in map(str, settings):
        sys.exit(f"--baseline {baseline!r} is not one of: {', '.join(map(str, settings))}")
    if problems := failures(engines, workshop, args):
        sys.exit("Decoding is wrong, nothing is measured:\n" + "\n".join(problems))

    result: dict[str, Any] = {
        **environment(args.device),
        "fairseq": fairseq_version,
        "ctranslate2": version("ctranslate2") if find_spec("ctranslate2") else "not installed",
        "options": options,
        "complete": False,
        "baseline": baseline,
        "lengths": [[len(words), length] for words, length in zip(sources, lengths, strict=True)],
        "decoding": [],
        "skipped": skipped,
        "bound": None,
        "training": None,
        "targets": [],
    }
    if result.get("isa", "") is None:
        print("benchmarks.decoding: there is no engine, PyTorch decodes (docs/install.md)", file=sys.stderr)
    done: list[Row] = []

    def keep(size: int, rows: list[Row]) -> None:
        """Write the rows of a batch size after those of the batch sizes that are done."""
        result["decoding"] = [*done, *({"batch": size, **row} for row in rows)]
        add_speedups(result["decoding"], baseline)
        write(args.out, result)

    for size in args.batches:
        batches, rows = in_batches(sources, lengths, size), []
        measured = measure(settings, batches, args, partial(keep, size))
        for (row, outputs), (engine, _) in zip(measured, settings.values(), strict=True):
            scores = {} if test is None or engine.forced else test.bleu(outputs, by_length(sources))
            rows.append(row | scores)
        keep(size, rows)
        done = result["decoding"]
    ar = engines.get(("ar", "float32")) if "ar" in args.systems else None
    middle = in_batches(sources, lengths, 1)[len(sources) // 2]
    if ar:
        result["bound"] = measure_bound(ar, middle, args)
    if args.training:
        result["training"] = measure_training(workshop, args)
    result |= {"targets": targets(result), "complete": True}
    print(tables(result), "\n")
    finish(result, args, draw_decoding)


if __name__ == "__main__":
    main()
