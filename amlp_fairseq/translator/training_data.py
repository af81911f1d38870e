"""Facts about a model from the data of its training: lengths of sentences, and subword units."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from omegaconf import DictConfig

from amlp_fairseq.compat.internals import data_utils
from amlp_fairseq.text.subwords import segmenter

#: One of so many sources that the training kept may be longer than the limit, their 99.9th percentile.
ONE_OF = 1000
#: The characters that mark pieces, by how words were cut up: sentencepiece's before a word, subword_nmt's after a part.
MARKS: dict[str, Callable[[str], bool]] = {
    "sentencepiece": lambda piece: piece.startswith("\N{LOWER ONE EIGHTH BLOCK}"),
    "subword_nmt": lambda piece: piece.endswith("@@"),
}
#: The most frequent pieces of a dictionary, and the first training sentences, that a subword model is tried on.
PIECES, SENTENCES = 2000, 500
#: The right subword model leaves all words whole that are pieces, and cuts training text into known pieces. Another of
#: the same corpus, half as large, leaves half of them whole; one that is a fifth larger makes 2 % unknown pieces.
LEAST_WHOLE, MOST_UNKNOWN = 0.9, 0.01


def longest_source(data: Sequence[Path], languages: Sequence[str], cfg: DictConfig) -> int | None:
    """The number of pieces, without the end symbol, from which a source is longer than nearly all that the model was
    trained on: the 99.9th percentile of the sources of those pairs that fit into ``--max-source-positions``,
    ``--max-target-positions`` and ``--max-tokens``; fairseq-train skips others. None where the data are not at hand.

    Args:
        data: the data folders of the training, ``a:b``.
        languages: source, target.
        cfg: the configuration in the checkpoint.
    """
    loaded = (
        (load_pairs(folder, f"train{number or ''}", languages) for number in itertools.count())  # train, train1, …
        for folder in data
    )
    sizes = [[each.sizes.copy() for each in pair or ()] for sets in loaded for pair in itertools.takewhile(bool, sets)]
    if not sizes:
        return None
    source, target = (np.concatenate(side) for side in zip(*sizes, strict=True))
    if getattr(cfg.task, "truncate_source", False):
        source = np.minimum(source, cfg.task.max_source_positions)
    kept = np.sort(source[(source <= _most(cfg, "source")) & (target <= _most(cfg, "target"))])
    return max(int(kept[-1 - len(kept) // ONE_OF]) - 1, 1) if len(kept) else None


def load_pairs(data: Path, name: str, languages: Sequence[str]) -> list[Any] | None:
    """The sources and targets of a training set, whose files fairseq finds by the pair in either order."""
    for pair in ("-".join(languages), "-".join(reversed(languages))):
        sets = [data_utils.load_indexed_dataset(str(data / f"{name}.{pair}.{language}")) for language in languages]
        if None not in sets:
            return sets
    return None


def _most(cfg: DictConfig, side: str) -> float:
    """The most tokens that a side of a training pair may have."""
    name = f"max_{side}_positions"
    limits = [getattr(cfg.task, name, None), getattr(cfg.model, name, None)]
    limits.append(getattr(cfg.get("dataset"), "max_tokens", None))
    return min((limit for limit in limits if limit), default=float("inf"))


def marked(path: Path) -> str | None:
    """The segmentation of words into the pieces of a dictionary: ``sentencepiece``, ``subword_nmt``, or ``GPT-2``,
    whose pieces are numbers; None for a dictionary of words."""
    symbols = _symbols(path)
    for kind, is_marked in MARKS.items():
        if sum(map(is_marked, symbols)) > len(symbols) / 100:
            return kind
    return "GPT-2" if sum(symbol.isdecimal() for symbol in symbols) > 0.9 * len(symbols) else None


def check_subword_model(
    kind: str, models: Sequence[Path], dictionaries: Mapping[str, Path], data: Path, languages: Sequence[str]
) -> None:
    """Refuse a subword model that does not write the pieces of its dictionary.

    Args:
        kind: ``sentencepiece`` or ``subword_nmt``.
        models: the files for source and target.
        dictionaries: by language.
        data: the data folder of the training, whose text is cut up anew, if it is at hand.
        languages: source, target.

    Raises:
        ValueError: naming the model and the dictionary.
    """
    sets = load_pairs(data, "train", languages) or [(), ()]
    for language, model, pairs in zip(languages, models, sets, strict=True):
        cut, path = segmenter(kind, model), dictionaries[language]
        words = [piece for piece in _symbols(path)[:PIECES] if _is_word(kind, piece)]
        whole = sum(cut(data_utils.post_process(word, kind)) == word for word in words)
        dictionary = Dictionary.load(str(path))
        pieces = [piece for text in _texts(kind, pairs, dictionary) for piece in cut(text).split()]
        unknown = sum(dictionary.index(piece) == dictionary.unk() for piece in pieces)
        if whole < LEAST_WHOLE * len(words):
            wrong = f"leaves {whole} of {len(words)} words whole that are pieces there"
        elif unknown > MOST_UNKNOWN * len(pieces):
            wrong = f"cuts training text up into {len(pieces)} pieces of which {unknown} are unknown there"
        else:
            continue
        raise ValueError(f"the subword model {model} is not that of {path}: it {wrong}; name the right one with "
                         "--subword-model")  # fmt: skip


def _symbols(path: Path) -> list[str]:
    """The entries of a dictionary, without the special ones and those that fill it up."""
    dictionary = Dictionary.load(str(path))
    return [symbol for symbol in dictionary.symbols[dictionary.nspecial :] if not symbol.startswith("madeupword")]


def _is_word(kind: str, piece: str) -> bool:
    """True if a piece is a word that was left whole, or the end of one, of more than one character."""
    return MARKS[kind](piece) == (kind == "sentencepiece") and len(piece.strip("\N{LOWER ONE EIGHTH BLOCK}")) > 1


def _texts(kind: str, sentences: Any, dictionary: Dictionary) -> Iterator[str]:
    """The words of training sentences, but for those with an unknown piece."""
    for number in range(min(len(sentences), SENTENCES)):
        tokens = sentences[number]
        if dictionary.unk() not in tokens:
            yield data_utils.post_process(dictionary.string(tokens), kind)
