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
        words, start = body.split(), 0
        while start < len(words):
            end = _longest(words, start, " ", fits)
            if end > start:
                yield " ".join(words[start:end]), " " if end < len(words) else space
                start = end
                continue
            word, begin = words[start], 0
            while (end := _longest(word, begin, "", fits)) < len(word):
                if end == begin:
                    raise ValueError(f"the character {word[begin]!r} alone is too long: a larger --max-length")
                yield word[begin:end], ""
                begin = end
            words[start] = word[begin:]


def _longest(units: Sequence[str], start: int, space: str, fits: Callable[[str], bool]) -> int:
    """The end of the most words or characters behind a start that fit together. Their number is doubled, then bisected:
    a part is short where the text is long. So only short parts are copied."""
    low, high = 0, 1
    most = len(units) - start
    while high < most and fits(space.join(units[start : start + high])):
        low, high = high, min(2 * high, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(space.join(units[start : start + middle])) else (low, middle - 1)
    return start + low
