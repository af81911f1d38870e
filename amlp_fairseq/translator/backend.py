"""Backends of a ``Translator``: the engine in C++, or PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol, TypeAlias

from amlp_fairseq.translator.given import Given

#: Is told the pieces of a sentence's translation so far, cut where pieces are missing; see ``Partial.parts``.
Watch: TypeAlias = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Found:
    """A translation of a sentence, in pieces.

    Attributes:
        pieces: with spaces between them.
        score: see ``Translation``.
        calls: decoder calls.
        alignment: pairs of a source and a target piece, counted from 0.
        attention: of each piece to those of the source; what is missing from 1 is the symbols'.
    """

    pieces: str
    score: float
    calls: int
    alignment: tuple[tuple[int, int], ...] = ()
    attention: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Scored:
    """The score of a translation that was given.

    Attributes:
        score: the log-probability divided by the length penalty, in nats.
        of_pieces: log-probabilities of its pieces and of its end.
    """

    score: float
    of_pieces: tuple[float, ...]


class Search(Protocol):
    """A model with decoding options."""

    @property
    def nbest(self) -> int:
        """The number of translations that are wanted."""

    def __call__(self, sources: Sequence[str], given: Sequence[Given] = ()) -> list[list[Found]]:
        """At most ``nbest`` translations of each sentence, given as pieces, best first; with what each must begin and
        end with, if anything is given."""

    def watched(self, source: str, given: Given, watch: Watch) -> list[Found]:
        """The same of one sentence; ``watch`` is told of each step, where the backend can, and what it raises ends the
        search."""

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[Scored]:
        """The scores of translations that are given, as pieces."""


class Backend(Protocol):
    """A model that is loaded."""

    @property
    def max_pieces(self) -> int:
        """The length of a source that the model has positions for."""

    def search(self, options: Mapping[str, Any], languages: tuple[str, str]) -> Search:
        """The search from one language to another, with decoding options that win over those with which the model was
        loaded."""


def check_counts(**counts: int) -> None:
    """Raise ValueError for what is not a whole number from 1; names it."""
    for name, value in counts.items():
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name}={value!r}: a whole number from 1 is needed")
