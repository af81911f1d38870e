"""Score rules: words that a search forbids or penalises in a step, independently of the model.

Notation: docs/glossary.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from amlp_fairseq.search.options import SearchOptions


class Prefixes(NamedTuple):
    """The hypotheses of a batch before a step: R rows, B for each sentence.

    Attributes:
        words: the words so far in generation order, without start symbols, (R, T).
        max_lengths: maximum number of words of each sentence's outputs, without the end symbol, (b,).
        shortest_limit: a lower bound on ``max_lengths``, as a number on the host: comparing needs no host-device sync.
    """

    words: Tensor
    max_lengths: Tensor
    shortest_limit: int


class ScoreRule(Protocol):
    """Forbids words (-inf) or changes their scores."""

    def __call__(self, lprobs: Tensor, prefixes: Prefixes) -> None:
        """Apply the rule in place.

        Args:
            lprobs: log-probabilities of the step's slots T … T + z - 1, (R, z, V).
            prefixes: the rows' words so far.
        """


@dataclass(frozen=True)
class NoPadding:
    """Forbids padding, which is not a word."""

    pad: int

    def __call__(self, lprobs: Tensor, prefixes: Prefixes) -> None:
        lprobs.select(-1, self.pad).fill_(-math.inf)


@dataclass(frozen=True)
class UnknownWordPenalty:
    """Reduces the unknown word's log-probability by ``penalty``."""

    unk: int
    penalty: float

    def __call__(self, lprobs: Tensor, prefixes: Prefixes) -> None:
        lprobs[..., self.unk] -= self.penalty


@dataclass(frozen=True)
class MinLength:
    """Forbids the end symbol before ``min_length`` words."""

    eos: int
    min_length: int

    def __call__(self, lprobs: Tensor, prefixes: Prefixes) -> None:
        missing = self.min_length - prefixes.words.size(1)
        if missing > 0:
            lprobs[:, :missing, self.eos] = -math.inf


@dataclass(frozen=True)
class MaxLength:
    """Forbids all but the end symbol after the maximum number of words (``Prefixes.max_lengths``)."""

    eos: int

    def __call__(self, lprobs: Tensor, prefixes: Prefixes) -> None:
        written, z = prefixes.words.size(1), lprobs.size(1)
        if written + z <= prefixes.shortest_limit:
            return
        slots = prefixes.max_lengths.repeat_interleave(len(lprobs) // len(prefixes.max_lengths)) - written
        rows = ((slots >= 0) & (slots < z)).nonzero().squeeze(1)
        slots = slots[rows]
        end_scores = lprobs[rows, slots, self.eos]
        lprobs[rows, slots] = -math.inf
        lprobs[rows, slots, self.eos] = end_scores


def score_rules(options: SearchOptions, pad: int, eos: int, unk: int) -> list[ScoreRule]:
    """The rules of the options, in the order in which they are applied."""
    rules: list[ScoreRule] = [NoPadding(pad)]
    if options.unk_penalty:
        rules.append(UnknownWordPenalty(unk, options.unk_penalty))
    if options.min_len > 0:
        rules.append(MinLength(eos, options.min_len))
    rules.append(MaxLength(eos))
    return rules
