"""The begin and the end of a translation, if they are given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from amlp_fairseq.engine.order import Order, Prefix
from amlp_fairseq.text.dictionary import EOS, SPECIAL, UNK, Dictionary
from amlp_fairseq.text.subwords import last_word, text_of


@dataclass(frozen=True)
class Given:
    """The begin and the end of a translation, in pieces.

    Attributes:
        first: pieces that it begins with.
        last: pieces that it ends with.
        goes_on: the last word of ``first`` may be the begin of a longer one.
        is_whole: ``first`` is all of it.
    """

    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    goes_on: bool = False
    is_whole: bool = False

    def __bool__(self) -> bool:
        return bool(self.first or self.last or self.is_whole)


class Prefixes:
    """Makes the engine's prefixes.

    Args:
        dictionary: of the target.
        order: the order of the model's words.
        segmentation: of words into pieces, see ``text/subwords.py``.
    """

    def __init__(self, dictionary: Dictionary, order: Order, segmentation: str | None) -> None:
        self.dictionary, self.order, self.segmentation = dictionary, order, segmentation
        symbols = list(enumerate(dictionary.symbols))[len(SPECIAL) :]
        self._texts = sorted((*text_of(symbol, segmentation), index) for index, symbol in symbols)
        self._longest = max((len(text) for text, _, _ in self._texts), default=0)

    def __call__(self, given: Given, end: int = EOS) -> Prefix:
        """The prefix of what is given, with the symbol that ends a translation.

        Raises:
            UnsupportedError: for words at an end that the model does not write first.
        """
        first, last = ([*self.dictionary.encode(" ".join(pieces))[:-1]] for pieces in (given.first, given.last))
        if given.is_whole:
            return self.order.whole(first, end)
        chain = self.order.ends(first, last)
        if not first:
            return chain
        if not given.goes_on or not self.order.left_to_right:
            return self._before_a_word(chain, len(first), end)
        if self.order.words_per_step > 1:
            return chain
        begin = last_word(given.first, self.segmentation)
        rest = "".join(text_of(piece, self.segmentation)[0] for piece in given.first[begin:])
        ways = self._ways(rest, begin)
        return [*chain[:begin], *ways] if ways else chain

    def _before_a_word(self, chain: Prefix, words: int, end: int) -> Prefix:
        """A prefix after which a word begins, or the translation ends. Where two directions write, it does not end
        there: the other one's words would follow."""
        if self.segmentation != "sentencepiece":
            return chain
        place = words if self.order.left_to_right else 2 * words
        chain += [{} for _ in range(place + 1 - len(chain))]
        chain[place] = dict.fromkeys(self._begins, place + 1)
        if self.order.left_to_right:
            chain[place][end] = place + 1
        return chain

    def _ways(self, text: str, begin: int) -> Prefix:
        """All ways to write a text with which a word begins; empty if there is none.

        Args:
            text: its characters.
            begin: the number of the first state.
        """
        states: dict[int, dict[int, int | None]] = {}  # of characters that are written, to that number after a token
        for place in reversed(range(len(text))):
            rest = text[place:]
            ways: dict[int, int | None] = dict.fromkeys(self._beginning_with(rest))
            for length in range(1, min(self._longest, len(rest) - 1) + 1):
                if place + length in states:
                    ways |= dict.fromkeys(self._open(rest[:length]), place + length)
            if ways:
                states[place] = ways
        if 0 not in states:
            return []
        numbers = {place: begin + index for index, place in enumerate(sorted(states))}
        after = begin + len(states)
        return [
            {token: after if place is None else numbers[place] for token, place in states[of].items()} for of in numbers
        ]

    def _beginning_with(self, text: str) -> list[int]:
        """The tokens whose characters begin with a text."""
        return self._from((text, False, 0), lambda characters: characters.startswith(text))

    def _open(self, text: str) -> list[int]:
        """The tokens with these characters, after which the word goes on."""
        return self._from((text, True, 0), text.__eq__)

    def _from(self, first: tuple[str, bool, int], fits: Callable[[str], bool]) -> list[int]:
        """The tokens from a place in their order, as long as their characters fit."""
        places = range(bisect_left(self._texts, first), len(self._texts))
        return [self._texts[place][2] for place in takewhile(lambda place: fits(self._texts[place][0]), places)]

    @cached_property
    def _begins(self) -> list[int]:
        """The tokens of sentencepiece that begin a word, most of a vocabulary."""
        return self._beginning_with("\u2581")


def shown(pieces: Sequence[str], given: Given) -> list[str]:
    """The pieces of a translation, with those that were given in the place of the unknown ones that stand for them."""
    result, begin = [*pieces], len(pieces) - len(given.last)
    for index, piece in (*enumerate(given.first), *enumerate(given.last, begin)):
        if index < len(result) and result[index] == SPECIAL[UNK]:
            result[index] = piece
    return result
