"""Compare models on a text with references: BLEU, chrF, decoder calls and milliseconds a sentence side by side.

    amlp-fairseq compare --model DIR [--model DIR …] --source test.en --reference test.de [--sentences N]

Further options are decoding options of fairseq-generate, which hold for all models; those of one model stand in quotes
with its folder: --model "DIR --decode-dtype int8". With --engine fairseq there, fairseq's own search decodes it, if it
is autoregressive; "(PyTorch)" marks a model that the plugin's engine does not have. Speeds are those over the first
model. Sentences are translated one at a time, in turn by all models, so that times are latencies under the same load;
the medians are shown.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text
from sacrebleu.metrics import CHRF
from tqdm import tqdm

from amlp_fairseq.cli.arguments import (
    BEST_ALONE,
    DEVICES,
    TEXT,
    add_decoding_options,
    add_text_arguments,
    decoding_flags,
    refuse_details,
)
from amlp_fairseq.common.arguments import (
    add_device,
    command_parser,
    parse_with_fairseqs,
    positive,
    say_next,
    split_options,
)
from amlp_fairseq.common.parallel_text import read_references
from amlp_fairseq.compat.flags import known_flags
from amlp_fairseq.model_folder.config import CONFIG, read_config
from amlp_fairseq.text.bleu import bleu_of
from amlp_fairseq.translator import decoding_options
from amlp_fairseq.translator.translator import Translation, Translator

#: Translations that are shown.
EXAMPLES = 2
#: Columns of a terminal that the table may need.
WIDEST = 1000


class Candidate(NamedTuple):
    """A model folder and the options of its own."""

    folder: Path
    options: list[str]

    @classmethod
    def of(cls, text: str) -> Candidate:
        """The value of ``--model``: a folder, whatever is in its name, or one with options."""
        folder, *options = [text] if Path(text).is_dir() or not text else shlex.split(text)
        return cls(Path(folder), options)

    @property
    def name(self) -> str:
        return " ".join([self.folder.name, *self.options])

    def load(self, words: list[str], settings: dict[str, Any]) -> Translator:
        """The model with decoding options of a command line and other arguments of ``Translator``.

        Raises:
            ValueError: if fairseq's search is asked for a model that it cannot decode.
        """
        given, options = split_options(self.options, ["--engine"])
        if given.engine not in (None, "fairseq"):
            raise ValueError(f"--engine {given.engine}: it is fairseq, or is left out")
        with TemporaryDirectory() as scratch:
            folder = for_fairseqs_search(self.folder, Path(scratch)) if given.engine else self.folder
            task = read_config(folder)["task"]["_name"]
            parsed = decoding_options.parse([*words, *options], task)
            refuse_details(parsed, BEST_ALONE)
            return Translator(folder, backend="pytorch" if given.engine else None, **{**settings, **parsed})


def for_fairseqs_search(folder: Path, copy: Path) -> Path:
    """Make the folder of an autoregressive model that the task of fairseq decodes, not the plugin's.

    Raises:
        ValueError: if the model is none.
    """
    config = read_config(folder)
    if (config["task"]["_name"], config["task"].get("num_directions")) != ("translation_interleaved", 1):
        raise ValueError(f"--engine fairseq: {folder} does not write one word after the other from left to right")
    config["task"]["_name"] = "translation"
    config["decoding"] = {
        name: value for name, value in config["decoding"].items() if name in decoding_options.known("translation")
    }
    for path in folder.iterdir():
        (copy / path.name).symlink_to(path.resolve())
    (copy / CONFIG).unlink()
    (copy / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    return copy


def run(translators: Sequence[Translator], sources: Sequence[str]) -> tuple[list[list[Translation]], list[float]]:
    """The translations by each model, and its median milliseconds a sentence."""
    found: list[list[Translation]] = [[] for _ in translators]
    seconds: list[list[float]] = [[] for _ in translators]
    for translator in translators:  # the first call lays weights out
        translator.translations(sources[:1])
    for source in tqdm(sources, unit=" sentences", disable=not sys.stderr.isatty()):
        for number, translator in enumerate(translators):
            begin = time.perf_counter()
            found[number] += translator.translations([source])
            seconds[number].append(time.perf_counter() - begin)
    return found, [1000 * statistics.median(each) for each in seconds]


def main() -> None:
    parser = command_parser("compare", __doc__)
    parser.add_argument(
        "--model",
        type=Candidate.of,
        action="append",
        required=True,
        metavar="DIR",
        help='a model folder, or "DIR options"; may be given several times',
    )
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help="raw text, a sentence a line")
    parser.add_argument("--reference", type=Path, required=True, metavar="FILE", help="its translations")
    parser.add_argument("--sentences", type=positive, metavar="N", help="only the first N")
    add_text_arguments(parser, "lines")
    add_device(parser, "cpu", DEVICES)
    add_decoding_options(parser)
    args, words = parse_with_fairseqs(
        parser, known_flags, accepted=lambda args: decoding_flags(*(each.folder for each in args.model))
    )
    sources, references = map(read_references, (args.source, args.reference))
    if len(sources) != len(references):
        counts = f"{len(sources)} lines, --reference {args.reference} has {len(references)}"
        raise ValueError(f"--source {args.source} has {counts}")
    sources, references = sources[: args.sentences], references[: args.sentences]
    bleu, chrf = bleu_of(read_config(args.model[0].folder)["languages"][-1]), CHRF()
    settings: dict[str, Any] = {name: getattr(args, name) for name in ("device", *TEXT)}
    translators = [each.load(words, settings) for each in args.model]
    found, milliseconds = run(translators, sources)

    table = Table("model", "BLEU", "chrF", "calls", "ms", "speed")
    for column in table.columns[1:]:
        column.justify = "right"
    for model, translator, translations, median in zip(args.model, translators, found, milliseconds, strict=True):
        texts = [translation.text for translation in translations]
        scores = [metric.corpus_score(texts, [references]).score for metric in (bleu, chrf)]
        calls = statistics.mean(translation.calls for translation in translations)
        cells = [f"{scores[0]:.1f}", f"{scores[1]:.1f}", f"{calls:.1f}", f"{median:.1f}"]
        in_pytorch = " (PyTorch)" * (bool(translator.why_pytorch) and "--engine" not in model.options)
        table.add_row(Text(model.name + in_pytorch), *cells, f"{milliseconds[0] / median:.2f}x")
    console = Console(soft_wrap=True)
    whole = console.measure(table, options=console.options.update(max_width=WIDEST)).maximum
    console.width = max(console.width, whole)  # a number that is cut off is none
    for number in range(min(EXAMPLES, len(sources))):
        console.print(example("source", sources[number], args.model))
        for model, translations in zip(args.model, found, strict=True):
            console.print(example(model.name, translations[number].text, args.model))
        console.print()
    console.print(table)
    console.print(f"[dim]{len(sources)} sentences, one at a time; {bleu.get_signature()}[/dim]", highlight=False)
    folders = dict.fromkeys(each.folder for each in args.model)
    say_next("watch", *(word for path in folders for word in ("--model", path)), sources[0])


def example(name: str, text: str, models: Sequence[Candidate]) -> Text:
    """A line with a name, as wide as the widest; brackets in it are text, not rich's markup."""
    width = max(len("source"), *(len(model.name) for model in models))
    return Text.assemble((f"{name:>{width}}", "dim"), "  ", text)


if __name__ == "__main__":
    main()
