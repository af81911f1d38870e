"""Probabilities of the translations of words, in the text format of Marian's lexical shortlists: a line ``TARGET SOURCE
PROBABILITY`` for each pair. Of the source ``NULL``, which Marian does not read, the translations are the words that
stand everywhere."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from amlp_fairseq.common.files import whole
from amlp_fairseq.common.lines import lines

#: A target word, a source word and the probability of the one as the translation of the other.
Entry: TypeAlias = tuple[str, str, float]
#: The source of what has none.
NULL = "NULL"


def read(path: Path) -> Iterator[Entry]:
    """The entries of a file, which is compressed if its name ends in ``.gz``.

    Raises:
        ValueError: for a line that is none; names it.
    """
    try:
        for number, line in enumerate(lines(path), 1):
            try:
                target, source, probability = (field for field in line.replace("\t", " ").split(" ") if field)
                value = float(probability)
            except ValueError:
                value = math.nan
            if not 0 <= value <= 1:
                raise ValueError(f"line {number}: not TARGET SOURCE PROBABILITY: {line.strip()!r}")
            yield target, source, value
    except ValueError as error:
        raise ValueError(f"{path} is not a lexical shortlist: {error}") from None


def write(path: Path, entries: Iterable[Entry]) -> int:
    """Write a file of entries, compressed if its name ends in ``.gz``; returns their number."""
    count = 0
    with (
        whole(path, unique=True) as (part,),
        (gzip.open if path.suffix == ".gz" else open)(part, "wt", encoding="utf-8") as file,
    ):
        for target, source, probability in entries:
            file.write(f"{target} {source} {probability:.6g}\n")
            count += 1
    return count
