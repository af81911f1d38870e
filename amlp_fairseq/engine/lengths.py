"""The most words of a translation."""

from __future__ import annotations

from typing import Protocol


class Limits(Protocol):
    """Options of a search."""

    @property
    def max_len_a(self) -> float: ...
    @property
    def max_len_b(self) -> int: ...


def most_words(options: Limits, source: int, positions: int) -> int:
    """The most words for a source of so many tokens, by a model with so many positions for words and the end symbol."""
    return min(int(options.max_len_a * source + options.max_len_b), positions - 1)


def exceeding(name: str, most: int) -> str:
    """Error text for an option that asks for more words."""
    limits = "--max-len-a, --max-len-b and --max-target-positions"
    return f"{name} exceeds the {most} words that {limits} allow for a sentence"
