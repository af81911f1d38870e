"""Print the score of each translation of a text: its log-probability divided by the length penalty, in nats. For
quality estimation, the filtering of data, and reranking.

    amlp-fairseq score-pairs --model DIR --source text.en --target text.de > scores.txt
    paste text.en text.de | amlp-fairseq score-pairs --model DIR > scores.txt
    amlp-fairseq score-pairs --model DIR --source text.en --target text.de --jsonl

A line of source and a line of target are read as wholes, for models that write word by word. --unnormalized prints
log-probabilities; --lenpen and --length-penalty are those of translate. Words after the end symbol in its step, which
some models count, are not in the score.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from amlp_fairseq.cli.arguments import add_translator_arguments, parse_translator_arguments
from amlp_fairseq.common.arguments import command_parser
from amlp_fairseq.common.lines import decoded, lines, refuse_closed_input
from amlp_fairseq.text.sentences import TooLong
from amlp_fairseq.translator.files import refuse_compressed
from amlp_fairseq.translator.options import Options
from amlp_fairseq.translator.translator import Translator

#: Decoding options with an effect here.
OF_SCORES = {"lenpen", "length_penalty", "unnormalized", "decode_dtype"}
#: Pairs that are read at a time.
BUFFER = 1000


def main() -> None:
    parser = command_parser("score-pairs", __doc__)
    add_translator_arguments(parser, "lines")
    parser.add_argument("--source", type=Path, metavar="FILE", help="texts (default: before a TAB in standard input)")
    parser.add_argument("--target", type=Path, metavar="FILE", help="their translations (default: after the TAB)")
    parser.add_argument(
        "--jsonl", action="store_true", help="a line of JSON for each pair, with the pieces and their log-probabilities"
    )
    args, settings = parse_translator_arguments(parser)
    refuse_without_effect(settings)
    if (args.source is None) != (args.target is None):
        raise ValueError("--source FILE and --target FILE are given together, or neither is")
    pairs = tab_separated() if args.source is None else of_files(args.source, args.target)
    translator, before = Translator(args.model, **settings), 0
    while chunk := [*islice(pairs, BUFFER)]:
        sources, targets = zip(*chunk, strict=True)
        try:
            scores = translator.score(sources, targets)
        except TooLong as error:
            raise ValueError(f"line {before + error.number}: {error}") from None
        for score in scores:
            detailed = {"score": score.score, "pieces": score.pieces, "log_probabilities": score.of_pieces}
            print(json.dumps(detailed, ensure_ascii=False) if args.jsonl else f"{score.score:.4f}", flush=True)
        before += len(chunk)


def refuse_without_effect(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for an option that has no effect on the score of a translation that is given."""
    given = {
        **{name: settings[name] for name in settings.keys() & Options.__annotations__.keys() - OF_SCORES},
        **({"split_sentences": True} if settings["split_sentences"] is not None else {}),
        **({"long": settings["long"]} if settings["long"] != "split" else {}),
    }
    if given:
        flag = min(given).replace("_", "-")
        raise ValueError(f"--{flag} has no effect on the score of a translation that is given: leave it out")


def of_files(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The pairs of two files.

    Raises:
        ValueError: for files with other numbers of lines, or that are compressed.
    """
    refuse_compressed(source)
    refuse_compressed(target)
    for number, (one, other) in enumerate(zip_longest(lines(source), lines(target)), 1):
        if one is None or other is None:
            shorter, longer = (source, target) if one is None else (target, source)
            raise ValueError(f"{shorter} ends before line {number} of {longer}")
        yield one, other


def tab_separated() -> Iterator[tuple[str, str]]:
    """The pairs of standard input.

    Raises:
        ValueError: for a line without, or with several tabulators; names it.
    """
    refuse_closed_input()
    for number, line in enumerate(decoded(sys.stdin.buffer, "standard input"), 1):
        source, *target = line.split("\t")
        if len(target) != 1:
            raise ValueError(f"line {number} of standard input has {len(target)} tabulators, not one: {line[:80]!r}")
        yield source, target[0]


if __name__ == "__main__":
    main()
