"""Blocking of repeated n-grams, against hand-made cases and all continuations of a step."""

from __future__ import annotations

import itertools
import math
import random
from functools import partial

import pytest
import tolerance
import torch

from amlp_fairseq.ops.generation_order import GenerationOrder
from amlp_fairseq.search.no_repeat_ngrams import NoRepeatNgrams
from amlp_fairseq.search.search_steps import combine_words

PAD, EOS = 1, 2


def test_banned_words_of_two_directions() -> None:
    rule = NoRepeatNgrams(2, GenerationOrder(2))
    # Generated 1 9 2 8 1: the text is 1 2 1 … 8 9, so "1 2", "2 1" and "8 9" are taken.
    words = [1, 9, 2, 8, 1]
    assert rule.banned([*words, 9]) == {2}  # "1 2" again
    assert rule.banned(words) == set()  # what precedes 8 may be anything
    assert rule.banned([*words, 9, 4]) == {8}  # the right direction reads backwards: "8 9" again
    assert NoRepeatNgrams(1, GenerationOrder(2)).banned(words) == {1, 2, 8, 9}


@pytest.mark.parametrize(("h", "size", "written"), [(1, 1, 2), (1, 2, 4), (1, 3, 6), (2, 1, 4), (2, 2, 8), (2, 3, 12)])
def test_blocked_combinations_equal_enumeration(h: int, size: int, written: int) -> None:
    """Two words per direction: all continuations without a repeated n-gram in the text of either side."""
    words, z, rng = (0, 3, 4, 5, 6), 2 * h, random.Random(size)

    def repeats(generated: tuple[int, ...]) -> bool:
        sides = [generated] if h == 1 else [generated[0::2], generated[1::2][::-1]]
        ngrams = [side[i : i + size] for side in sides for i in range(len(side) - size + 1)]
        return len(set(ngrams)) < len(ngrams)

    histories: set[tuple[int, ...]] = set()
    while len(histories) < 16:
        history = tuple(rng.choices(words, k=written))
        if not repeats(history):
            histories.add(history)
    tokens = torch.tensor(sorted(histories))
    lprobs = torch.randn(16, z, 7, generator=torch.Generator().manual_seed(size)).log_softmax(-1)
    lprobs[..., PAD] = -math.inf

    forbidden = partial(NoRepeatNgrams(size, GenerationOrder(h, 2)).forbidden, tokens)
    actual = combine_words(lprobs, 7**z, EOS, PAD, forbidden=forbidden, max_forbidden=written + z)
    for row, history in enumerate(tokens.tolist()):
        expected = {}
        for n in range(z + 1):
            for step in itertools.product(words, repeat=n):
                if not repeats((*history, *step)):
                    ended = (*step, EOS, *[PAD] * z)[:z]
                    scored = step if n == z else (*step, EOS)
                    expected[ended] = sum(float(lprobs[row, slot, word]) for slot, word in enumerate(scored))
        finite = actual.scores[row].isfinite()
        steps = [tuple(step) for step in actual.words[row, finite].tolist()]
        assert dict(zip(steps, actual.scores[row, finite].tolist(), strict=True)) == pytest.approx(
            expected, abs=8 * tolerance.UNIT[torch.float32] * max(map(abs, expected.values()))
        )


def test_seams_are_checked_in_reading_order() -> None:
    rule = NoRepeatNgrams(2, GenerationOrder(2))
    assert rule.repeats([1, 2, 2, 1, 3])  # text 1 2 3 1 2
    assert not rule.repeats([1, 2, 2, 3, 1])  # text 1 2 1 3 2
