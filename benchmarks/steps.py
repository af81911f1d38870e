"""Decoding time of the average attention network (AAN) over position and beam, against Transformers, in one run.

    python -m benchmarks.steps [--device cuda] [--dtype float16] [--out FILE.json] [--plot FILE.svg]

Random weights. First, in float32, every system's decoding must agree with its full forward, and the Transformer's beam
search with and without cache word for word; else there are no numbers and the status is 1. Systems:

- aan_transformer: average attention in the decoder; + FFN: as in the paper, the other one with --no-average-ffn
- Transformer: fairseq's, whose decoder keeps the keys and values of all positions
- Transformer without cache: the same weights; each step runs the decoder over all words so far, and projects only the
  last position onto the vocabulary
- triton_dynamicconv: DynamicConv in encoder and decoder, another constant state

- Steps: time of one decoder call, vocabulary projection included, at each position, for --rows hypotheses; medians.
  The first quarter is without position 1, which also makes the keys and values of the source where these are kept.
  State: bytes of the self-attentions' decoding state for one hypothesis; keys and values of the source are not in it.
- Search: fairseq's SequenceGenerator, encoder included, on sentences of exactly --length words; medians. Ratios are
  speed over that of the Transformer with and without cache. The poster does not say which its Transformer is.
- The systems take turns, in random order. The warm-up is a whole run on CUDA, a run of a few words on a CPU.
"""

import itertools
import logging
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import __version__ as fairseq_version
from fairseq.data import Dictionary
from fairseq.models import FairseqDecoder, FairseqEncoderDecoderModel, build_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from torch import Tensor, nn

from amlp_fairseq.common.arguments import positive
from amlp_fairseq.training.environment import environment
from amlp_fairseq.training.results import markdown
from benchmarks.harness import add_sizes, finish, options_parser, parse, rounds
from benchmarks.labels import label_ends

AAN, FFN, CACHED, UNCACHED, CONV = SYSTEMS = (
    "aan_transformer", "aan_transformer + FFN", "Transformer", "Transformer without cache", "triton_dynamicconv",
)  # fmt: skip
#: Decoding seconds of the Transformer over the AAN's by beam, on the poster of Zhang et al. 2018.
POSTER = {4: 3.70, 8: 4.06, 12: 4.26, 16: 4.31, 20: 4.32}
#: How far float32 decoding may be from the full forward, relative to the largest output.
AGREEMENT = 1e-4
#: The length from which AAN should be faster than the Transformer with cache.
LONG = 50
#: Above this many hypotheses there are no runs without cache: they would take too long.
UNCACHED_ROWS = 64
#: Beam and length at which the search with and without cache are compared; longer outputs have near ties.
GATE_BEAM, GATE_LENGTH = 4, 12
Row = dict[str, Any]


class WholePrefixDecoder(FairseqDecoder):
    """A decoder that keeps nothing: each call runs over all words so far and gives the last position's output."""

    def __init__(self, decoder: Any) -> None:
        super().__init__(decoder.dictionary)
        self.decoder = decoder

    def forward(
        self, prev_output_tokens: Tensor, encoder_out: Any = None, incremental_state: Any = None
    ) -> tuple[Tensor, Any]:
        features, extra = self.decoder(prev_output_tokens, encoder_out=encoder_out, features_only=True)
        return self.decoder.output_layer(features[:, -1:]), extra

    def max_positions(self) -> int:
        return self.decoder.max_positions()


def build(args: Namespace) -> dict[str, Any]:
    """The systems' models, random, in float32."""
    dictionary = Dictionary()
    for i in range(args.words):
        dictionary.add_symbol(f"w{i}")
    task = TranslationTask(TranslationConfig(), dictionary, dictionary)
    sizes = {"embed_dim": args.embed_dim, "ffn_embed_dim": args.ffn_embed_dim, "layers": args.layers}
    sizes["attention_heads"] = args.heads
    kernels = {"kernel_size_list": [*[3, 7, 15][: args.layers], *[31] * (args.layers - 3)]}  # of the convolutions
    options = {f"{side}_{name}": x for side in ("encoder", "decoder") for name, x in (sizes | kernels).items()}
    options |= dict.fromkeys(("decoder_input_dim", "decoder_output_dim"), args.embed_dim)
    longest = max(1024, args.length + 2, args.source_length + 2)
    options |= dict.fromkeys(("max_source_positions", "max_target_positions"), longest)
    models = {
        AAN: build_model(Namespace(arch="aan_transformer", no_average_ffn=True, **options), task),
        FFN: build_model(Namespace(arch="aan_transformer", **options), task),
        CACHED: TransformerModelBase.build_model(TransformerConfig.from_namespace(Namespace(**options)), task),
        CONV: build_model(Namespace(arch="triton_dynamicconv", **options), task),
    }
    for model in models.values():
        nn.init.normal_(model.decoder.output_projection.weight, std=3 * args.embed_dim**-0.5)  # words that differ
        model.make_generation_fast_(need_attn=False)  # as fairseq-generate does
        model.to(args.device)
    encoder, decoder = models[CACHED].encoder, models[CACHED].decoder
    models[UNCACHED] = FairseqEncoderDecoderModel(encoder, WholePrefixDecoder(decoder))
    return {name: models[name] for name in SYSTEMS}


def sources(args: Namespace, count: int) -> dict[str, Any]:
    """A batch of random sentences of --source-length words."""
    words = torch.randint(4, 4 + args.words, (count, args.source_length))
    tokens = torch.cat([words, torch.full((count, 1), 2)], dim=1).to(args.device)
    return {"net_input": {"src_tokens": tokens, "src_lengths": torch.full((count,), tokens.size(1)).to(tokens)}}


def prefixes(args: Namespace, count: int) -> Tensor:
    """Random decoder inputs, (count, --length)."""
    words = torch.randint(4, 4 + args.words, (count, args.length - 1))
    return torch.cat([torch.full((count, 1), 2), words], dim=1).to(args.device)


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def hypotheses(model: Any, sample: dict[str, Any], beam: int, length: int, device: str) -> tuple[float, list[Any]]:
    """Seconds and results of a beam search for exactly ``length`` words."""
    generator = SequenceGenerator(
        [model], model.decoder.dictionary, beam_size=beam, max_len_a=0, max_len_b=length, min_len=length
    )
    start = now(device)
    found = generator.generate([model], sample)
    duration = now(device) - start
    tokens = [[hypothesis["tokens"].tolist() for hypothesis in sentence] for sentence in found]
    assert all(len(sentence) == beam and {len(words) for words in sentence} == {length + 1} for sentence in tokens)
    return duration, tokens


def state_bytes(decoder: nn.Module, state: dict[str, Any]) -> int:
    """Bytes that the self-attentions keep, without scalars, each storage once; a module's id prefixes its entries."""
    parts = [part for name, part in decoder.named_modules() if "self_attn" in name.split(".")]
    ids = {part._incremental_state_id for part in parts if hasattr(part, "_incremental_state_id")}
    kept = [value for key, entry in state.items() if key.split(".")[0] in ids for value in entry.values()]
    storages = [value.untyped_storage() for value in kept if isinstance(value, Tensor) and value.dim() > 0]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@torch.no_grad()
def walk(model: Any, encoder_out: Any, tokens: Tensor, device: str) -> Iterator[tuple[float, int, Tensor]]:
    """For each step: seconds, bytes of the state after it, output."""
    state: dict[str, Any] = {}
    for n in range(1, tokens.size(1) + 1):
        start = now(device)
        output, _ = model.decoder(tokens[:, :n], encoder_out=encoder_out, incremental_state=state)
        yield now(device) - start, state_bytes(model.decoder, state), output


def step_costs(model: Any, encoder_out: Any, tokens: Tensor, device: str) -> list[tuple[float, int]]:
    return [(duration, size) for duration, size, _ in walk(model, encoder_out, tokens, device)]


@torch.no_grad()
def failures(models: dict[str, Any], args: Namespace) -> list[str]:
    """Messages on systems that decode wrongly."""
    sample, tokens, found = sources(args, 2), prefixes(args, 2), []
    for name in (AAN, FFN, CACHED, CONV):
        model = models[name]
        encoder_out = model.encoder.forward_torchscript(sample["net_input"])
        whole = model.decoder(tokens, encoder_out=encoder_out)[0]
        steps = torch.cat([output for _, _, output in walk(model, encoder_out, tokens, args.device)], dim=1)
        error = ((steps - whole).abs().max() / whole.abs().max()).item()
        if not error <= AGREEMENT:
            found.append(f"{name}: decoding is off by {error:.1e} from the full forward")
    search = (sample, GATE_BEAM, min(args.length, GATE_LENGTH), args.device)
    if hypotheses(models[CACHED], *search)[1] != hypotheses(models[UNCACHED], *search)[1]:
        found.append("the Transformer finds other words without its cache")
    return found


def warm_up_length(args: Namespace) -> int:
    return args.length if args.device == "cuda" else min(args.length, 5)


def left_out(name: str, rows: int) -> Row:
    """Why a system is not run; {} if it is."""
    return {"skipped": "not run"} if name == UNCACHED and rows > UNCACHED_ROWS else {}


def measure_steps(models: dict[str, Any], args: Namespace) -> list[Row]:
    sample, tokens, calls = sources(args, args.rows), prefixes(args, args.rows), {}
    rows = {name: {"system": name, **left_out(name, args.rows)} for name in models}
    for name in [name for name, row in rows.items() if "skipped" not in row]:
        with torch.no_grad():
            encoder_out = models[name].encoder.forward_torchscript(sample["net_input"])
        step_costs(models[name], encoder_out, tokens[:, : warm_up_length(args)], args.device)
        calls[name] = partial(step_costs, models[name], encoder_out, tokens, args.device)
    quarter, marks = max(1, args.length // 4), sorted({1, args.length // 2, args.length})
    for name, runs in rounds(calls, args.repeats).items():
        ms = [1000 * statistics.median(duration for duration, _ in steps) for steps in zip(*runs, strict=True)]
        first, last = statistics.mean(ms[1 : quarter + 1]), statistics.mean(ms[-quarter:])
        rows[name] |= {"first_quarter_ms": first, "last_quarter_ms": last, "growth": last / first, "ms": ms}
        rows[name]["state_bytes"] = {str(n): runs[0][n - 1][1] // args.rows for n in marks}
    return list(rows.values())


def measure_search(models: dict[str, Any], args: Namespace) -> list[Row]:
    results: list[Row] = []
    for batch, beam in itertools.product(args.batches, args.beams):
        sample = sources(args, batch)
        shape, calls = {"batch": batch, "beam": beam}, {}
        rows = {name: {**shape, "system": name, **left_out(name, batch * beam)} for name in models}
        for name in [name for name, row in rows.items() if "skipped" not in row]:
            hypotheses(models[name], sample, beam, warm_up_length(args), args.device)
            calls[name] = partial(hypotheses, models[name], sample, beam, args.length, args.device)
        for name, runs in rounds(calls, args.repeats).items():
            seconds = statistics.median(duration for duration, _ in runs)
            rows[name] |= {"seconds": seconds, "sentences_per_second": batch / seconds}
        for row in rows.values():
            for key, base in (("vs_cached", CACHED), ("vs_uncached", UNCACHED)):
                if "seconds" in row and "seconds" in rows[base]:
                    row[key] = rows[base]["seconds"] / row["seconds"]
            if row["system"] in (AAN, FFN) and beam in POSTER:
                row["poster"] = POSTER[beam]
        results += rows.values()
    return results


def targets(search: list[Row], args: Namespace) -> list[Row]:
    """Whether AAN is as fast as it should be, at every batch size; ``passed`` is None if this run cannot tell."""

    def target(text: str, bound: float, key: str, rows: list[Row]) -> Row:
        worst = min((row[key] for row in rows if key in row), default=None)
        return {"target": text, "value": worst, "passed": None if worst is None else worst >= bound}

    ours = [row for row in search if row["system"] == AAN]
    faster = f"{LONG} words and more: AAN is faster than the Transformer with cache, at every beam"
    as_posted = "beam {}: AAN is {:.2f} times as fast as the Transformer without cache, a ratio as on the poster"
    return [
        target(faster, 1, "vs_cached", ours if args.length >= LONG else []),
        *(
            target(as_posted.format(beam, ratio), ratio, "vs_uncached", [row for row in ours if row["beam"] == beam])
            for beam, ratio in POSTER.items()
        ),
    ]


def tables(steps: list[Row], search: list[Row]) -> str:
    """The rows in Markdown."""

    def cells(row: Row, keys: dict[str, str]) -> list[str]:
        values = [f"{row[key]:.4g}" if key in row else "" for key in keys.values()]
        return [row.get("skipped", values[0]), *values[1:]]

    columns = {"first quarter ms": "first_quarter_ms", "last quarter ms": "last_quarter_ms", "ratio": "growth"}
    marks = list(steps[0]["state_bytes"])
    lines = [
        [row["system"], *cells(row, columns), *(str(row["state_bytes"][n]) if "ms" in row else "" for n in marks)]
        for row in steps
    ]
    first = markdown(["system", *columns, *(f"state bytes at {n}" for n in marks)], lines)
    columns = {
        "sentences/s": "sentences_per_second", "over Transformer": "vs_cached",
        "over Transformer without cache": "vs_uncached", "poster": "poster",
    }  # fmt: skip
    lines = [[str(row["batch"]), str(row["beam"]), row["system"], *cells(row, columns)] for row in search]
    return first + "\n\n" + markdown(["batch", "beam", "system", *columns], lines)


def plot(result: dict[str, Any], path: Path) -> None:
    """Time of a step over position, and speed over beam at the first batch size."""
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # fairseq logs at DEBUG
    from matplotlib.figure import Figure  # of the extra "bench"

    options = result["options"]
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in SYSTEMS:
        style: dict[str, Any] = {"label": name, "linewidth": 3 if name == AAN else 1.5}
        for row in result["steps"]:
            if row["system"] == name and "ms" in row:
                left.plot(range(1, len(row["ms"]) + 1), row["ms"], **style)
        rows = [row for row in result["search"] if row["system"] == name and "seconds" in row]
        points = [(row["beam"], row["sentences_per_second"]) for row in rows if row["batch"] == options["batches"][0]]
        if points:
            right.plot(*zip(*points, strict=True), marker="o", **style)
    left.set(xlabel="position", ylabel="decoder step [ms]", title=f"{options['rows']} hypotheses", ylim=(0, None))
    right.set(xlabel="beam", ylabel="sentences/s", yscale="log", title=f"batches of {options['batches'][0]}")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    sizes = "d={embed_dim}, {layers} layers, {words} words, {length} long, {dtype}, {threads} CPU threads"
    figure.suptitle(f"{result['device']}: {sizes.format(**options)}")
    for axis in (left, right):
        label_ends(axis)
    figure.savefig(path)


def main() -> None:
    parser = options_parser(__doc__, repeats=3)
    add_sizes(parser)
    parser.add_argument("--length", type=positive, default=60, help="words of the output")
    parser.add_argument("--source-length", type=positive, default=30, help="words of the input")
    parser.add_argument("--rows", type=positive, default=4, help="hypotheses in the timing of steps")
    parser.add_argument("--batches", type=positive, nargs="+", default=[1, 32], help="sentences in a search")
    parser.add_argument("--beams", type=positive, nargs="+", default=[1, 4, 8, 16, 20])
    args, options = parse(parser)
    if args.length < 2:
        parser.error("--length must be at least 2")
    if args.words < 2 * max(args.beams):
        parser.error("--words must be at least twice the largest beam")

    models = build(args)
    if found := failures(models, args):
        sys.exit("Decoding is wrong, nothing is measured:\n" + "\n".join(found))
    for model in models.values():
        model.to(args.dtype)
    steps, search = measure_steps(models, args), measure_search(models, args)
    result = {
        **environment(args.device),
        "fairseq": fairseq_version,
        "options": options,
        "steps": steps,
        "search": search,
        "targets": targets(search, args),
    }
    print(tables(steps, search), "\n")
    finish(result, args, plot)


if __name__ == "__main__":
    main()
