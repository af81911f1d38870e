"""Texts that a translation must not have, for the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amlp_fairseq.engine.model import Suppressed
from amlp_fairseq.text.dictionary import SPECIAL, Dictionary
from amlp_fairseq.text.subwords import text_of


class Suppressor:
    """Finds all ways to write a text with the pieces of a dictionary.

    Args:
        dictionary: of the target.
        segmentation: of words into pieces, see ``text/subwords.py``.
    """

    def __init__(self, dictionary: Dictionary, segmentation: str | None) -> None:
        self.segmentation = segmentation
        symbols = list(enumerate(dictionary.symbols))[len(SPECIAL) :]
        self._tokens = {self._characters([symbol]): index for index, symbol in symbols}
        self._longest = max(map(len, self._tokens), default=0)

    def __call__(self, texts: Iterable[str]) -> tuple[Suppressed, ...]:
        """The texts, given as pieces, in all ways; without those that the model cannot write."""
        return tuple(ways for text in texts if (ways := self._ways(self._characters(text.split()))))

    def _characters(self, pieces: Sequence[str]) -> str:
        """The characters of pieces, with a space after each that ends a word."""
        found = (text_of(piece, self.segmentation) for piece in pieces)
        return "".join(text + " " * (not goes_on) for text, goes_on in found)

    def _ways(self, text: str) -> Suppressed:
        """The pieces that stand in a text, where other ones lead to them and from them to its end."""
        steps = [
            (begin, end, self._tokens[text[begin:end]])
            for begin in range(len(text))
            for end in range(begin + 1, min(begin + self._longest, len(text)) + 1)
            if text[begin:end] in self._tokens
        ]
        after, before = {0}, {len(text)}
        for begin, end, _ in steps:
            after |= {end} if begin in after else set()
        for begin, end, _ in reversed(steps):
            before |= {begin} if end in before else set()
        return tuple(step for step in steps if step[0] in after and step[1] in before)
