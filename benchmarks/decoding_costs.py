"""Decoder calls beside the time to read their memory, and the speed of training, for benchmarks/decoding.py."""

import itertools
import math
import random
import re
import statistics
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset

from amlp_fairseq.data.interleaved_pair_dataset import InterleavedPairDataset
from amlp_fairseq.evaluation.decoding_times import Row
from benchmarks.engines import Batch, Engine, TimedCall
from benchmarks.harness import MIB, rounds, timed
from benchmarks.step_parts import stopwatch
from benchmarks.systems import Workshop, random_words

#: Bytes that are read to measure the memory bandwidth, and how often the parts of a step are timed.
BANDWIDTH_BYTES, BOUND_REPEATS = 512 * MIB, 25


def sentence_lengths(count: int) -> list[tuple[int, int]]:
    """Words of sources and targets."""
    distribution, generator = statistics.NormalDist(math.log(24), 0.55), random.Random(1)
    sources = [max(3, round(math.exp(distribution.inv_cdf((i + 0.5) / count)))) for i in range(count)]
    return [(source, max(3, round(source * math.exp(generator.gauss(0, 0.15))))) for source in sources]


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
    runs = []
    with stopwatch() as spent:
        run = type(engine)(engine.model, engine.task, engine.precision, args, forced=True).call(batch, beam)
        run()
        for _ in range(BOUND_REPEATS):
            before = dict(spent)
            total, _ = timed(run, args.device)
            parts = {part: spent[part] - before[part] for part in spent}
            runs.append(parts | {"all else": 1000 * total - sum(parts.values())})
    return {part: statistics.median(parts[part] for parts in runs) for part in runs[0]}


def measure_bound(engine: Engine, batch: Batch, args: Namespace) -> dict[str, Any]:
    """The time of a decoder call, and the time that reading its memory takes at least."""
    memory, one_word = torch.ones(BANDWIDTH_BYTES // 4, device=args.device), replace(batch, length=1)
    runs: dict[Any, TimedCall] = {
        (beam, part.length): engine.call(part, beam) for beam in args.beams for part in (one_word, batch)
    }
    steps = {key: engine.watch(run)[1] for key, run in runs.items()}
    calls = {key: partial(timed, run, args.device) for key, run in (runs | {"read": memory.sum}).items()}
    timings = rounds(calls, 1 + BOUND_REPEATS)
    # The first are warm-ups.
    ms = {key: np.array([1000 * duration for duration, _ in results[1:]]) for key, results in timings.items()}
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
    for name, timings in rounds(calls, 1 + args.repeats).items():
        seconds = statistics.median(duration for duration, _ in timings[1:])
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
