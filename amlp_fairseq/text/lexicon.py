"""Probabilities of the translations of words, in the text format of Marian's lexical shortlists: a line ``TARGET SOURCE
PROBABILITY`` for each pair. Of the source ``NULL``, which Marian does not read, the translations are the words that
stand everywhere."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from amlp_fairseq.common.files import whole

#: A target word, a source word and the probability of the one as the translation of the other.
Entry: TypeAlias = tuple[str, str, float]
#: The source of what has none.
NULL = "NULL"


def _opener(path: Path) -> Callable[..., Any]:
    return gzip.open if path.suffix == ".gz" else open


def read(path: Path) -> Iterator[Entry]:
    """The entries of a file, which is compressed if its name ends in ``.gz``.

    Raises:
        ValueError: for a line that is none; names it.
    """
    number = 1
    try:
        with _opener(path)(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                fields = line.rstrip("\n").replace("\t", " ").split(" ")
                try:
                    target, source, probability = (field for field in fields if field)
                    value = float(probability)
                except ValueError:
                    value = math.nan
                if not 0 <= value <= 1:
                    raise ValueError(f"not TARGET SOURCE PROBABILITY: {line.strip()!r}")
                yield target, source, value
                number += 1
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a lexical shortlist: line {number}: {error}") from None


def write(path: Path, entries: Iterable[Entry]) -> int:
    """Write a file of entries, compressed if its name ends in ``.gz``; returns their number."""
    count = 0
    with whole(path, unique=True) as (part,), _opener(path)(part, "wt", encoding="utf-8") as file:
        for target, source, probability in entries:
            file.write(f"{target} {source} {probability:.6g}\n")
            count += 1
    return count
