"""Inputs that are longer than a model can read."""

from __future__ import annotations

from collections.abc import Callable, Iterator

#: What may be done with them.
CHOICES = ("split", "truncate", "refuse")


class TooLong(ValueError):
    """An input is longer than the model can read; ``number`` says which, from 1."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


def split(text: str, language: str, fits: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Cut a text up into parts that fit, each with the space that is behind it: sentences, or words of one that is too
    long itself. Other white space counts as one space.

    Args:
        text: any text.
        language: its code, whose rules for the ends of sentences hold (English ones if there are none).
        fits: whether a part is short enough.

    Raises:
        ValueError: if a word does not fit.
    """
    import sentencex  # here, because machines without a network may lack it: no checkpoint needs it

    for sentence in sentencex.segment(language, " ".join(text.split())):
        body = sentence.rstrip()
        space = sentence[len(body) :]
        if fits(body):
            yield body, space
            continue
        words = body.split()
        while words:
            count = _longest(words, fits)
            if count == 0:
                raise ValueError(f"a word of {len(words[0])} characters is too long for the model")
            yield " ".join(words[:count]), " " if count < len(words) else space
            words = words[count:]


def _longest(words: list[str], fits: Callable[[str], bool]) -> int:
    """The number of words from the beginning that fit together, by bisection."""
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(" ".join(words[:middle])) else (low, middle - 1)
    return low
