"""The cases that stand for products of parameters."""

from __future__ import annotations

import itertools

import pytest
from pairwise import pairwise


@pytest.mark.parametrize(("sizes", "most"), [((2, 2), 4), ((2,) * 6, 8), ((12, 2, 2, 2, 2), 24), ((7, 4, 3, 2), 30)])
def test_every_two_values_meet_in_few_cases(sizes: tuple[int, ...], most: int) -> None:
    parameters = [range(size) for size in sizes]
    cases = pairwise(*parameters)
    assert len(cases) <= most
    for a, b in itertools.combinations(range(len(sizes)), 2):
        assert {(case[a], case[b]) for case in cases} == set(itertools.product(parameters[a], parameters[b]))
