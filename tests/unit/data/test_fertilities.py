"""Fertilities, from alignments."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amlp_fairseq.data.fertilities import fertilities


@pytest.mark.parametrize(
    ("links", "source", "target", "expected"),
    [
        ([(0, 0), (1, 1), (2, 2)], 3, 3, [1, 1, 1]),
        ([(2, 0), (2, 1), (0, 2)], 3, 3, [1, 0, 2]),
        ([(1, 0), (0, 0), (1, 1)], 2, 2, [1, 1]),  # the first of two source words
        ([(1, 1)], 2, 4, [0, 4]),  # words without links go with the one before, at the beginning with the one behind
        ([(0, 0), (2, 3)], 3, 5, [3, 0, 2]),
        ([], 2, 6, [3, 3]),
        ([], 3, 2, [1, 0, 1]),
        ([], 2, 0, [0, 0]),
    ],
)
def test_fertilities_by_hand(links: list[tuple[int, int]], source: int, target: int, expected: list[int]) -> None:
    assert fertilities(np.array(links, dtype=int).reshape(-1, 2), source, target).tolist() == expected


@settings(deadline=None, max_examples=50)
@given(data=st.data(), source=st.integers(1, 6), target=st.integers(1, 6))
def test_they_sum_to_the_target_and_only_aligned_words_have_any(data: st.DataObject, source: int, target: int) -> None:
    pairs = st.tuples(st.integers(0, source - 1), st.integers(0, target - 1))
    links = data.draw(st.lists(pairs, min_size=1, max_size=8))
    counts = fertilities(np.array(links), source, target)
    assert counts.sum() == target
    assert {i for i, count in enumerate(counts) if count} <= {i for i, _ in links}


@pytest.mark.parametrize("link", [(3, 0), (0, 2), (-1, 0)])
def test_a_link_beyond_the_sentence_is_named(link: tuple[int, int]) -> None:
    message = f"the alignment {link[0]}-{link[1]} is not one of 3 source and 2 target words"
    with pytest.raises(ValueError, match=message):
        fertilities(np.array([(0, 0), link]), 3, 2)
