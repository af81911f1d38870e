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
- ibdecoder: (h, c) = (2, 1); ibdecoder-sa: (2, 2); -rescored: ar, with weights of its own, chooses among the hypotheses
- cmlm: fairseq's, with its generator; cmlmc, cmlmc-amlp: ours
- aan, dynamicconv: ours, from left to right
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
  has one thread or --threads, whichever is faster. For each batch all systems and ways of decoding take turns, in
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

import itertools
import logging
import math
import os
import random
import re
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq import __version__ as fairseq_version
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.models.transformer import TransformerModel

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.data.interleaved_pair_dataset import InterleavedPairDataset
from amlp_fairseq.evaluation.charts import Point, frontier
from amlp_fairseq.evaluation.decoding_times import Row, SpeedUp, add_speedups, way
from amlp_fairseq.evaluation.parameters import dictionary
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import markdown
from benchmarks import quiet
from benchmarks.harness import add_sizes, finish, now, options_parser, parse, rounds, write
from benchmarks.labels import label_points
from benchmarks.ops import MIB, peak_extra_memory
from benchmarks.step_parts import stopwatch
from benchmarks.systems import (
    SYSTEMS,
    Batch,
    Built,
    CTranslate,
    Engine,
    Stock,
    TestSet,
    TimedCall,
    Workshop,
    engine_of,
    load,
)
from benchmarks.targets import PRECISIONS, targets

#: Latencies are given by length of the source, in bins with these edges, in words.
BINS = (10, 20, 30, 40, 50)
#: Lengths of the sources, and of the outputs, on which the systems are compared before anything is measured.
GATE_SOURCES, GATE_LENGTH = (4, 7, 11), 8
#: Bytes that are read to measure the memory bandwidth, and how often the parts of a step are timed.
BANDWIDTH_BYTES, BOUND_REPEATS = 512 * MIB, 25
#: What identifies a row.
KEYS = ("batch", "system", "precision", "decoding")


class Variant(NamedTuple):
    """A system in one precision and one way of decoding."""

    system: str
    precision: str
    decoding: str

    def __str__(self) -> str:
        return " ".join(self)


def engines(
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
    found: dict[tuple[str, str], Engine] = {}
    skipped = []
    for name, engine, built, forced in plans:
        for precision in args.precisions:
            if precision not in engine.PRECISIONS[args.device]:
                continue
            if reason := engine.lacks(precision, args.device):
                skipped.append({"system": name, "precision": precision, "reason": reason})
            else:
                found[name, precision] = engine(built.model, built.task, precision, args, forced)
    return found, skipped


def ways(found: dict[tuple[str, str], Engine], args: Namespace) -> dict[Variant, tuple[Engine, int]]:
    """Every engine with each of its beams or numbers of iterations."""
    return {
        Variant(name, precision, f"{number} iterations" if engine.iterative else f"beam {number}"): (engine, number)
        for (name, precision), engine in found.items()
        for number in engine.numbers(args)
    }


def sentence_lengths(count: int) -> list[tuple[int, int]]:
    """Words of sources and targets."""
    distribution, generator = statistics.NormalDist(math.log(24), 0.55), random.Random(1)
    sources = [max(3, round(math.exp(distribution.inv_cdf((i + 0.5) / count)))) for i in range(count)]
    return [(source, max(3, round(source * math.exp(generator.gauss(0, 0.15))))) for source in sources]


def random_words(count: int, words: Dictionary) -> list[int]:
    return torch.randint(words.nspecial, len(words), (count,)).tolist()


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


def failures(found: dict[tuple[str, str], Engine], workshop: Workshop, args: Namespace) -> list[str]:
    """Messages on systems that decode wrongly."""
    sources = [random_words(count, workshop.source) for count in GATE_SOURCES]
    batch, problems = Batch(list(range(len(sources))), sources, GATE_LENGTH), []

    def words(engine: Engine, number: int) -> list[list[int]]:
        outputs = written(engine, batch, engine.call(batch, number)())
        return [tokens[:GATE_LENGTH] for tokens in outputs]  # CTranslate2 has no end symbol

    for (name, precision), engine in found.items():
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


def timed(run: TimedCall, device: str) -> tuple[float, Any]:
    start = now(device)
    result = run()
    return now(device) - start, result


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
    """Which sentences each bin has."""
    bins: dict[str, list[int]] = {}
    for i in sorted(range(len(sources)), key=lambda i: len(sources[i])):
        bins.setdefault(length_bin(len(sources[i])), []).append(i)
    return bins


def measure(
    variants: dict[Variant, tuple[Engine, int]],
    batches: list[Batch],
    args: Namespace,
    keep: Callable[[list[Row]], None],
) -> list[tuple[Row, dict[int, list[int]]]]:
    """The numbers of each variant, and its outputs by sentence. ``keep`` is given the numbers after each batch."""
    totals = {key: {"tokens": 0, "decoder_calls": 0} for key in variants}
    timings: dict[Variant, list[list[quiet.Timing]]] = {key: [] for key in variants}
    workers = [engine.worker.process.pid for engine, _ in variants.values() if isinstance(engine, CTranslate)]
    threads = {
        key: engine.worker.threads if isinstance(engine, CTranslate) else torch.get_num_threads()
        for key, (engine, _) in variants.items()
    }

    def row_of(key: Variant) -> Row:
        row = key._asdict() | totals[key] | summary(timings[key], batches[: len(timings[key])])
        return row | {"threads": threads[key], "tokens_per_second": row["tokens"] / row["seconds"]}

    outputs: dict[Variant, dict[int, list[int]]] = {key: {} for key in variants}
    for i, batch in enumerate(batches):
        calls = {}
        for key, (engine, number) in variants.items():
            run = engine.call(batch, number)
            result, decoder_calls = engine.watch(run)
            tokens = written(engine, batch, result)
            outputs[key].update(zip(batch.indices, tokens, strict=True))
            totals[key]["tokens"] += sum(map(len, tokens))
            totals[key]["decoder_calls"] += decoder_calls
            calls[key] = partial(watched, run, args.device, workers)
        for key, runs in rounds(calls, args.repeats, seed=i).items():
            for _, result in runs:
                written(variants[key][0], batch, result)
            timings[key].append([timing for timing, _ in runs])
        keep([row_of(key) for key in variants])
    largest = max(batches, key=lambda batch: len(batch.sources) * batch.length)
    results = []
    for key, (engine, number) in variants.items():
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


def step_bytes(decoder: Any, source_length: int, words: float, beam: int) -> dict[str, float]:
    """The least bytes that a call of a float32 decoder must read, by part; ``words`` counts those of the call, too."""
    layers = decoder.layers
    weights = sum(
        parameter.numel()
        for name, parameter in layers.named_parameters()
        if not re.search(r"encoder_attn\.[kv]_proj", name)
    )
    return {
        "layers": 4 * weights,
        "output projection": 4 * decoder.output_projection.weight.numel(),
        "keys and values": 4 * 2 * (beam * words + source_length) * decoder.embed_dim * len(layers),
    }


def parts_ms(engine: Engine, batch: Batch, beam: int, args: Namespace) -> dict[str, float]:
    """Time of a run, by part."""
    found = []
    with stopwatch() as spent:
        run = type(engine)(engine.model, engine.task, engine.precision, args, forced=True).call(batch, beam)
        run()
        for _ in range(BOUND_REPEATS):
            before = dict(spent)
            total, _ = timed(run, args.device)
            parts = {part: spent[part] - before[part] for part in spent}
            found.append(parts | {"all else": 1000 * total - sum(parts.values())})
    return {part: statistics.median(row[part] for row in found) for part in found[0]}


def measure_bound(engine: Engine, batch: Batch, args: Namespace) -> dict[str, Any]:
    """The time of a decoder call, and the time that reading its memory takes at least."""
    memory, one_word = torch.ones(BANDWIDTH_BYTES // 4, device=args.device), replace(batch, length=1)
    runs: dict[Any, TimedCall] = {
        (beam, part.length): engine.call(part, beam) for beam in args.beams for part in (one_word, batch)
    }
    steps = {key: engine.watch(run)[1] for key, run in runs.items()}
    calls = {key: partial(timed, run, args.device) for key, run in (runs | {"read": memory.sum}).items()}
    found = rounds(calls, 1 + BOUND_REPEATS)
    # The first are warm-ups.
    ms = {key: np.array([1000 * duration for duration, _ in results[1:]]) for key, results in found.items()}
    rows = []
    for beam in args.beams:
        first, last = steps[beam, 1], steps[beam, batch.length]
        step = (ms[beam, batch.length] - ms[beam, 1]) / (last - first)
        size = step_bytes(engine.model.decoder, len(batch.sources[0]) + 1, (first + 1 + last) / 2, beam)
        bound = {part: ms["read"] * count / BANDWIDTH_BYTES for part, count in size.items()}
        whole = np.sum(list(bound.values()), axis=0)
        row: Row = {
            "decoding": f"beam {beam}",
            "bytes": size,
            "bound_ms_by_part": {part: float(np.median(values)) for part, values in bound.items()},
            "bound_ms": float(np.median(whole)),
            "start_ms": float(np.median(ms[beam, 1] - first * step)),
            "step_ms": float(np.median(step)),
            "over_bound": float(np.median(step / whole)),
        }
        if args.device == "cpu":
            long, short = (parts_ms(engine, part, beam, args) for part in (batch, one_word))
            row["step_ms_by_part"] = {part: (long[part] - short[part]) / (last - first) for part in long}
        rows.append(row)
    return {"gb_per_second": BANDWIDTH_BYTES / float(np.median(ms["read"])) / 1e6, "steps": rows}


def measure_training(workshop: Workshop, args: Namespace) -> list[Row]:
    """Words per second of training, of a Transformer and an IBDecoder."""
    lengths = sentence_lengths(args.training)
    random.Random(1).shuffle(lengths)
    totals = itertools.accumulate(target + 1 for _, target in lengths)
    lengths = lengths[: max(1, sum(total <= args.training for total in totals))]

    def sentences(counts: Iterable[int], words: Dictionary) -> tuple[list[torch.Tensor], list[int], Dictionary]:
        tokens = [torch.tensor([*random_words(count, words), words.eos()]) for count in counts]
        return tokens, [len(x) for x in tokens], words

    source = sentences((count for count, _ in lengths), workshop.source)
    target = sentences((count for _, count in lengths), workshop.target)
    pairs = LanguagePairDataset(*source, *target)
    calls = {}
    for name in ("transformer", "ibdecoder"):
        model, task, cfg = workshop.new(name)
        model.to(args.device)
        data = InterleavedPairDataset(pairs, task.order) if name == "ibdecoder" else pairs
        batch = data.collater([data[i] for i in range(len(data))])
        batch["net_input"] = {key: value.to(args.device) for key, value in batch["net_input"].items()}
        batch |= {key: value.to(args.device) for key, value in batch.items() if isinstance(value, torch.Tensor)}
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        update = partial(train, model, task.build_criterion(cfg.criterion), optimizer, batch)
        calls[name] = partial(timed, update, args.device)
    rows: list[Row] = []
    words = sum(target[1])
    for name, found in rounds(calls, 1 + args.repeats).items():
        seconds = statistics.median(duration for duration, _ in found[1:])
        rows.append({"system": name, "words": words, "seconds": seconds, "words_per_second": words / seconds})
    for row in rows:
        row["over_transformer"] = row["words_per_second"] / rows[0]["words_per_second"]
    return rows


def train(model: Any, criterion: Any, optimizer: torch.optim.Optimizer, batch: dict[str, Any]) -> None:
    """An update."""
    loss, _, _ = criterion(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def tables(result: dict[str, Any]) -> str:
    """The numbers in Markdown."""
    rows = result["decoding"]
    columns = ["ms", "5 %", "95 %", "sentences/s", "tokens/s", "decoder calls", "speed-up", "disturbed"]
    rest = {"peak_mib": "peak MiB"} | ({"bleu": "BLEU"} if any("bleu" in row for row in rows) else {})
    lines = []
    for row in rows:
        low, middle, high = row["ms_percentiles"]
        values = [middle, low, high, row["sentences_per_second"], row["tokens_per_second"], row["decoder_calls"]]
        cells = [f"{value:.4g}" for value in values]
        cells += [str(SpeedUp(row["speedup"], *row["speedup_quartiles"])), "; ".join(row["disturbed"]) or "no"]
        cells += [f"{row[key]:.2f}" if key in row else "not measured" for key in rest]
        lines.append([str(row[key]) for key in KEYS] + cells)
    found = [markdown([*KEYS, *columns, *rest.values()], lines)]

    bins = list(rows[0]["ms_by_source_length"])
    lines = [
        [str(row[key]) for key in KEYS] + [f"{duration:.4g}" for duration in row["ms_by_source_length"].values()]
        for row in rows
        if row["batch"] == rows[0]["batch"]
    ]
    found.append(markdown([*KEYS, *(f"ms, source {name}" for name in bins)], lines))

    if bound := result["bound"]:
        parts = list(bound["steps"][0]["bound_ms_by_part"])
        lines = [
            [row["decoding"], *(f"{row['bound_ms_by_part'][part]:.3f}" for part in parts)]
            + [f"{row[key]:.3f}" for key in ("bound_ms", "step_ms", "over_bound", "start_ms")]
            for row in bound["steps"]
        ]
        columns = ["ar float32", *(f"{part} ms" for part in parts), "bound ms", "step ms", "over bound", "start ms"]
        found.append(f"Memory: {bound['gb_per_second']:.1f} GB/s\n\n{markdown(columns, lines)}")
        if parts := bound["steps"][0].get("step_ms_by_part"):
            lines = [
                [row["decoding"], *(f"{row['step_ms_by_part'][part]:.3f}" for part in parts)] for row in bound["steps"]
            ]
            found.append(markdown(["ar float32", *(f"{part} ms" for part in parts)], lines))
    if result["training"]:
        keys = ["words", "seconds", "words_per_second", "over_transformer"]
        lines = [[row["system"], *(f"{row[key]:.4g}" for key in keys)] for row in result["training"]]
        found.append(markdown(["training", *keys], lines))
    found += [f"skipped: {row['system']} {row['precision']}: {row['reason']}" for row in result["skipped"]]
    return "\n\n".join(found)


def plot(result: dict[str, Any], path: Path) -> None:
    """BLEU over latency where there is BLEU, else speed-ups, both at the first batch size."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq logs at DEBUG
    from matplotlib.figure import Figure  # of the extra "bench"

    size = result["options"]["batches"][0]
    rows = [row for row in result["decoding"] if row["batch"] == size]
    scored = [row for row in rows if "bleu" in row]
    figure = Figure(figsize=(10, 6.5 if scored else 1.5 + 0.2 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    if scored:
        points = [Point(row["ms_percentiles"][1], row["bleu"], way(row)) for row in scored]
        best = frontier(points)
        places, on_it = ([(point.cost, point.bleu) for point in group] for group in (points, best))
        axes.plot(*zip(*on_it, strict=True), drawstyle="steps-post", color="0.6", zorder=1)
        axes.plot(*zip(*places, strict=True), "o", color="C0", alpha=0.5)
        axes.plot(*zip(*on_it, strict=True), "o", color="C0", markersize=8)
        axes.margins(x=0.15, y=0.08)
        axes.set(xscale="log", xlabel=f"ms, median, batch {size}", ylabel="BLEU")
        title = f"{len(best)} of {len(points)} ways are on the frontier: nothing faster is better"
    else:
        fastest: dict[str, float] = {}
        for row in rows:
            fastest[row["system"]] = max(row["speedup"], fastest.get(row["system"], 0.0))
        rows.sort(key=lambda row: (-fastest[row["system"]], row["system"], -row["speedup"]))
        colours = [f"C{list(dict.fromkeys(row['precision'] for row in rows)).index(row['precision'])}" for row in rows]
        bars = axes.barh([way(row) for row in rows], [row["speedup"] for row in rows], color=colours)
        axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=7)
        axes.invert_yaxis()
        axes.margins(y=0.01)
        axes.set(xlabel=f"speed-up over {result['baseline']}, batch {size}")
        axes.tick_params(axis="y", labelsize=7)
        title = f"{way(rows[0])} is {rows[0]['speedup']:.1f} times as fast as {result['baseline']}"
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.supxlabel(f"{result['device']}, {result['threads']} threads", x=0.01, ha="left", fontsize=8, color="0.35")
    if scored:
        label_points(axes, {point.name: (point.cost, point.bleu) for point in points}, {point.name for point in best})
    figure.savefig(path)


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
    add("--baseline", metavar="'SYSTEM PRECISION DECODING'", help="what speed-ups are over (default: the first row)")
    add("--training", type=positive, metavar="TOKENS", help="also time training, with that many words per batch")
    add("--data", metavar="DIR", help="translate its test set")
    add("--checkpoint", nargs="+", default=[], metavar="NAME=PATH", help="trained models, for --data")
    add("--length-beam", type=positive, default=1, help="candidates of different lengths, where lengths are not forced")
    add("--force-length", action="store_true", help="use the references' lengths for trained models, too")
    add("--cuda-graphs", action="store_true", help="for our systems, where supported")
    args, given = parse(parser)
    args.precisions = args.precisions or ["float32", "int8" if args.device == "cpu" else "float16"]
    if args.systems is None:
        args.systems = [] if args.data else list(SYSTEMS)
    given |= {"precisions": args.precisions, "systems": args.systems}
    if args.checkpoint and args.data is None:
        parser.error("--checkpoint needs --data")
    if any("=" not in checkpoint for checkpoint in args.checkpoint):
        parser.error("--checkpoint takes NAME=PATH")
    names = [*args.systems, *(checkpoint.partition("=")[0] for checkpoint in args.checkpoint)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        parser.error(f"--systems and --checkpoint: two systems have the name {twice[0]}")
    if args.words < 2 * max(args.beams):
        parser.error("--words must be at least twice the largest beam")
    return args, given


def main() -> None:
    args, given = parsed()
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
    found, skipped = engines(workshop, args.systems, checkpoints, args)
    variants = ways(found, args)
    if not variants:
        sys.exit(f"there is nothing to measure; skipped: {skipped}")
    baseline = args.baseline or str(next(iter(variants)))
    if baseline not in map(str, variants):
        sys.exit(f"--baseline {baseline!r} is not one of: {', '.join(map(str, variants))}")
    if problems := failures(found, workshop, args):
        sys.exit("Decoding is wrong, nothing is measured:\n" + "\n".join(problems))

    result: dict[str, Any] = {
        **environment(args.device),
        "fairseq": fairseq_version,
        "ctranslate2": version("ctranslate2") if find_spec("ctranslate2") else "not installed",
        "options": given,
        "complete": False,
        "baseline": baseline,
        "lengths": [[len(words), length] for words, length in zip(sources, lengths, strict=True)],
        "decoding": [],
        "skipped": skipped,
        "bound": None,
        "training": None,
        "targets": [],
    }
    if result.get("operators") == "PyTorch":
        print("benchmarks.decoding: our operators are not compiled: amlp-fairseq compile", file=sys.stderr)
    done: list[Row] = []

    def keep(size: int, rows: list[Row]) -> None:
        """Write the rows of a batch size, behind those of the batch sizes that are done."""
        result["decoding"] = [*done, *({"batch": size, **row} for row in rows)]
        add_speedups(result["decoding"], baseline)
        write(args.out, result)

    for size in args.batches:
        batches, rows = in_batches(sources, lengths, size), []
        measured = measure(variants, batches, args, partial(keep, size))
        for (row, outputs), (engine, _) in zip(measured, variants.values(), strict=True):
            scores = {} if test is None or engine.forced else test.bleu(outputs, by_length(sources))
            rows.append(row | scores)
        keep(size, rows)
        done = result["decoding"]
    ar = found.get(("ar", "float32")) if "ar" in args.systems else None
    middle = in_batches(sources, lengths, 1)[len(sources) // 2]
    if ar:
        result["bound"] = measure_bound(ar, middle, args)
    if args.training:
        result["training"] = measure_training(workshop, args)
    result |= {"targets": targets(result), "complete": True}
    print(tables(result), "\n")
    finish(result, args, plot)


if __name__ == "__main__":
    main()
