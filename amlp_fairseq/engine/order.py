"""The order in which a model of the engine writes, and what its translations must begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from amlp_fairseq.engine.description import UnsupportedError
from amlp_fairseq.engine.isa import library
from amlp_fairseq.text.dictionary import EOS

#: What a translation must begin with: an automaton that reads its tokens in the order in which they are written. Each
#: state allows some tokens, which lead to later states; one without tokens allows all but the end symbol. After the
#: last state all tokens may follow. A model that writes several words a step needs at most one token in each state.
Prefix: TypeAlias = list[dict[int, int]]


def shifted(prefix: Prefix, by: int) -> Prefix:
    """A prefix after so many words."""
    return [{token: after + by for token, after in state.items()} for state in prefix]


def shortest(prefix: Prefix, end: int = EOS) -> int:
    """The number of words, without the end symbol, of the shortest way through a prefix."""
    words = [0] * (len(prefix) + 1)
    for state in reversed(range(len(prefix))):
        ways = prefix[state] or {-1: state + 1}
        words[state] = min(words[after] + (token != end) for token, after in ways.items())
    return words[0]


@dataclass(frozen=True)
class Order:
    """The order of generation; see ``ops/generation_order.py``.

    Attributes:
        directions: h.
        words_per_step: z.
        middle_to_side: from the middle to the ends.
    """

    directions: int
    words_per_step: int
    middle_to_side: bool

    @property
    def left_to_right(self) -> bool:
        return self.directions == 1

    def runs(self, written: Sequence[int]) -> list[list[int]]:
        """Words so far, in reading order, cut where words are missing; the first run begins the text, and the last one
        ends it: both may be empty.

        Args:
            written: in the order in which they are written.
        """
        runs: list[list[int]] = [[]]
        # as many more words as directions: each has one to write
        for slot in library().slots(len(written) + self.directions, self.directions, self.middle_to_side):
            if slot < len(written):
                runs[-1].append(written[slot])
            else:
                runs.append([])
        return [run for place, run in enumerate(runs) if run or place in (0, len(runs) - 1)]

    def whole(self, text: Sequence[int], end: int = EOS) -> Prefix:
        """The prefix that allows one text, without its end symbol, and its end."""
        states: Prefix = [{}] * (len(text) + 1)
        for token, slot in zip(text, library().slots(len(text), self.directions, self.middle_to_side), strict=True):
            states[slot] = {token: slot + 1}
        states[len(text)] = {end: len(text) + 1}
        return states

    def ends(self, first: Sequence[int], last: Sequence[int]) -> Prefix:
        """The prefix of texts with some words at their begin and their end.

        Raises:
            UnsupportedError: if they are not written first.
        """
        if self.left_to_right and not last:
            return [{token: slot + 1} for slot, token in enumerate(first)]
        if self.directions != 2 or self.middle_to_side:
            side = "the end" if self.left_to_right else "the begin or the end"
            raise UnsupportedError(f"words at {side} of a translation: this model does not write them first")
        slots = max(2 * len(first) - 1, 2 * len(last), 0)
        given = {2 * k: token for k, token in enumerate(first)} | {
            2 * k + 1: token for k, token in enumerate(reversed(last))
        }
        return [{given[slot]: slot + 1} if slot in given else {} for slot in range(slots)]
