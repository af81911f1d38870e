"""Inputs that are longer than a model can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

#: What may be done with them.
CHOICES = ("split", "truncate", "refuse")


class TooLong(ValueError):
    """An input is longer than the model can read; ``number`` says which, from 1."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def split(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Cut a text up into parts that fit, each with the space that is behind it: sentences, words of one that is too
    long itself, and characters of a word that is (an address, or text of a language without spaces). Other white space
    counts as one space.

    Args:
        text: any text.
        language: its code, whose rules for the ends of sentences hold (English ones if there are none).
        fits: whether a part is short enough.

    Raises:
        ValueError: if a single character does not fit.
    """
    import sentencex  # here, because machines without a network may lack it: no checkpoint needs it

    sentences: list[str] = []
    for segment in sentencex.segment(language, " ".join(text.split())):
        sentence = segment.lstrip()
        if sentences:  # behind a mark like ".[1]" the space is the next segment's
            sentences[-1] += segment[: len(segment) - len(sentence)]
        if sentence:
            sentences.append(sentence)
    for sentence in sentences:
        body = sentence.rstrip()
        space = sentence[len(body) :]
        if fits(body):
            yield body, space
            continue
        words = body.split()
        while words:
            count = _longest(words, " ", fits)
            if count > 0:
                yield " ".join(words[:count]), " " if count < len(words) else space
                words = words[count:]
                continue
            while (count := _longest(words[0], "", fits)) < len(words[0]):
                if count == 0:
                    raise ValueError(f"the character {words[0][0]!r} alone is too long: a larger --max-length")
                yield words[0][:count], ""
                words[0] = words[0][count:]


def _longest(units: Sequence[str], space: str, fits: Callable[[str], bool]) -> int:
    """The number of words or characters from the beginning that fit together. It is doubled, then bisected: a part is
    short where the text is long."""
    low, high = 0, 1
    while high < len(units) and fits(space.join(units[:high])):
        low, high = high, min(2 * high, len(units))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(space.join(units[:middle])) else (low, middle - 1)
    return low
