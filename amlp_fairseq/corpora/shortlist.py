"""Make a lexical shortlist: for each source word the likely translations in the training data, and frequent words.

    amlp-fairseq shortlist DATA --out lex.s2t [--frequent 100] [--best 100]

DATA is a folder of `amlp-fairseq prepare`, `distill` or fairseq-preprocess. With `amlp-fairseq package --shortlist` a
model writes words of its source's list alone, which is much faster where the decoder is small and the vocabulary is
not: other words need no logits. The file has the text format of Marian's `--shortlist`, and is compressed if its name
ends in .gz. Word alignments are eflomal's where it is installed (pip install "amlp-fairseq[align]"), else those of IBM
model 1.

    amlp-fairseq shortlist data/multi30k/distilled --out lex.s2t.gz
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from fairseq.data import Dictionary

from amlp_fairseq.common.arguments import command_parser, positive, say_next
from amlp_fairseq.corpora import lexicons
from amlp_fairseq.corpora.align import installed
from amlp_fairseq.engine.shortlist import BEST, FREQUENT
from amlp_fairseq.text import lexicon
from amlp_fairseq.training.data_folder import data_folder
from amlp_fairseq.translator.training_data import load_pairs

ALIGNERS = {"eflomal": lexicons.eflomal, "model-1": lexicons.model_1}


def languages_of(data: Path, source: str | None, target: str | None) -> tuple[str, str]:
    """The languages of the training set, in the order of its files' names, unless they are given.

    Raises:
        ValueError: for a folder without such a set, or with several.
    """
    if source is not None and target is not None:
        return source, target
    pairs = sorted({path.name.split(".")[1] for path in data.glob("train.*-*.*.idx")})
    if len(pairs) != 1:
        found = ", ".join(pairs) or "none"
        raise ValueError(f"DATA {data}: the training set of one pair is needed, there are: {found} (-s and -t choose)")
    first, second = pairs[0].split("-")
    return source or (first if target != first else second), target or (second if source != second else first)


def training_set(data: Path, languages: tuple[str, str]) -> list[list[npt.NDArray[np.int64]]]:
    """The words of sources and targets, with end symbols: train, train1, …

    Raises:
        ValueError: if there are none.
    """
    sides: list[list[Any]] = [[], []]
    for number in itertools.count():
        loaded = load_pairs(data, f"train{number or ''}", languages)
        if not loaded:
            break
        for side, sentences in zip(sides, loaded, strict=True):
            side += [sentences[index].numpy().astype(np.int64)[:-1] for index in range(len(sentences))]
    if not sides[0]:
        raise ValueError(f"DATA {data} has no training set from {languages[0]} to {languages[1]}")
    if len(sides[0]) != len(sides[1]):
        raise ValueError(f"DATA {data} has {len(sides[0])} sources and {len(sides[1])} targets")
    return sides


def entries(
    table: lexicons.Table, best: int, symbols: tuple[list[str], list[str]], special: int
) -> Iterator[lexicon.Entry]:
    """The likeliest translations of each source word, best first.

    Args:
        special: the number of symbols at the beginning that are no words.
    """
    probabilities, (source, target) = table.probabilities(), symbols
    order = np.lexsort((table.target, -probabilities, table.source))
    previous, rank = -1, 0
    for index in order.tolist():
        of, word = int(table.source[index]), int(table.target[index])
        if min(of, word) < special or lexicon.NULL in (source[of], target[word]):
            continue
        rank = rank + 1 if of == previous else 0
        previous = of
        if rank < best:
            yield target[word], source[of], float(probabilities[index])


def frequent_words(
    targets: lexicons.Sentences, count: int, symbols: list[str], special: int
) -> Iterator[lexicon.Entry]:
    """The most frequent target words as translations of ``NULL``, with their shares of the text."""
    counts = np.bincount(np.concatenate(targets), minlength=len(symbols))
    counts[:special] = 0
    for word in np.argsort(-counts, kind="stable")[:count].tolist():
        if counts[word] and symbols[word] != lexicon.NULL:
            yield symbols[word], lexicon.NULL, float(counts[word] / counts.sum())


def add_sizes(parser: argparse._ActionsContainer) -> None:
    """``--frequent`` and ``--best``."""
    parser.add_argument("--frequent", type=positive, metavar="N", help=f"words of every list (default: {FREQUENT})")
    parser.add_argument("--best", type=positive, metavar="N", help=f"translations of a source word (default: {BEST})")


def main() -> None:
    parser = command_parser("shortlist", __doc__)
    parser.add_argument("data", metavar="DATA", type=data_folder, help="the data folder")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the file to write, lex.s2t or lex.s2t.gz"
    )
    add_sizes(parser)
    parser.set_defaults(frequent=FREQUENT, best=BEST)
    parser.add_argument(
        "--aligner",
        choices=[*ALIGNERS],
        help="finds the translations (default: eflomal, where it is installed, else model-1: IBM model 1)",
    )
    parser.add_argument("-s", "--source-lang", metavar="CODE", help="the language that is read")
    parser.add_argument("-t", "--target-lang", metavar="CODE", help="the language that is written")
    args = parser.parse_args()
    if not args.data.is_dir():
        raise FileNotFoundError(f"DATA {args.data}: there is no such folder")
    if args.out.exists():
        raise ValueError(f"--out {args.out} exists already: name another file, or remove it")
    languages = languages_of(args.data, args.source_lang, args.target_lang)
    dictionaries = [Dictionary.load(str(args.data / f"dict.{language}.txt")) for language in languages]
    sources, targets = training_set(args.data, languages)
    name = args.aligner or ("model-1" if installed() is None else "eflomal")
    table, pairs = ALIGNERS[name](sources, targets, len(dictionaries[1]))
    symbols, special = (dictionaries[0].symbols, dictionaries[1].symbols), dictionaries[1].nspecial
    frequent = frequent_words(targets, args.frequent, symbols[1], special)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    count = lexicon.write(args.out, itertools.chain(frequent, entries(table, args.best, symbols, special)))
    print(f"{args.out}: {count} translations from {pairs} pairs of sentences, by {name}")
    say_next("package", "MODEL", "--shortlist", args.out, "--out", "DIR")


if __name__ == "__main__":
    main()
