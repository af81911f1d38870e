"""Score rules against hand-made tables."""

from __future__ import annotations

import math

import torch

from amlp_fairseq.search.rules import MaxLength, MinLength, NoPadding, Prefixes, ScoreRule, UnknownWordPenalty

PAD, EOS, UNK = 1, 2, 3
INF = math.inf


def applied(rule: ScoreRule, written: int = 2, max_lengths: tuple[int, ...] = (9, 9), z: int = 2) -> list:
    """Log-probabilities, initially -1, of two sentences with two rows each and the words <s>, pad, end, unknown."""
    lprobs = torch.full((4, z, 4), -1.0)
    rule(lprobs, Prefixes(torch.zeros(4, written, dtype=torch.long), torch.tensor(max_lengths), min(max_lengths)))
    assert torch.equal(lprobs[::2], lprobs[1::2])  # rows of one sentence
    return lprobs[::2].tolist()


def test_no_padding() -> None:
    assert applied(NoPadding(PAD)) == [[[-1, -INF, -1, -1]] * 2] * 2


def test_unknown_words_cost() -> None:
    assert applied(UnknownWordPenalty(UNK, 0.5)) == [[[-1, -1, -1, -1.5]] * 2] * 2


def test_no_end_before_the_least_words() -> None:
    """Maximum lengths at the step's slots 2 and 3."""
    free, none = [-1, -1, -1, -1], [-1, -1, -INF, -1]
    for least, expected in {2: [free, free], 3: [none, free], 4: [none, none], 9: [none, none]}.items():
        assert applied(MinLength(EOS, least)) == [expected] * 2


def test_only_the_end_behind_the_most_words() -> None:
    free, end = [-1, -1, -1, -1], [-INF, -INF, -1, -INF]
    assert applied(MaxLength(EOS), max_lengths=(4, 9)) == [[free, free], [free, free]]
    assert applied(MaxLength(EOS), max_lengths=(9, 3)) == [[free, free], [free, end]]
    assert applied(MaxLength(EOS), max_lengths=(2, 3)) == [[end, free], [free, end]]


def test_the_only_word_left_keeps_its_score() -> None:
    lprobs = torch.tensor([[[-3.0, -2.0, -0.5, -1.0]]])
    MaxLength(EOS)(lprobs, Prefixes(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]), 2))
    assert lprobs.tolist() == [[[-INF, -INF, -0.5, -INF]]]
