"""Chosen cases where a product of parameters would have too many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any


def pairwise(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return cases, one value of each parameter, in which every two values of two parameters meet at least once.

    A product of six parameters of two values has 64 cases, this has 8.
    """
    columns = range(len(parameters))
    sizes = [range(len(values)) for values in parameters]
    left = {
        pair: None
        for a, b in itertools.combinations(columns, 2)
        for pair in itertools.product([a], sizes[a], [b], sizes[b])
    }
    cases: list[tuple[Any, ...]] = []
    while left:
        first, i, second, j = next(iter(left))
        case = {first: i, second: j}
        for column in columns:
            if column not in case:
                turn = len(cases) % len(sizes[column])  # where it makes no difference, one value after the other
                values = [*sizes[column][turn:], *sizes[column][:turn]]
                new = [sum(pair in left for pair in _pairs(case | {column: value}, column)) for value in values]
                case[column] = values[new.index(max(new))]
        for column in columns:
            for pair in _pairs(case, column):
                left.pop(pair, None)
        cases.append(tuple(values[case[column]] for column, values in enumerate(parameters)))
    return cases


def _pairs(case: dict[int, int], column: int) -> Iterator[tuple[int, int, int, int]]:
    """The pairs of a column's value with the values of the other columns."""
    for other in case.keys() - {column}:
        a, b = min(column, other), max(column, other)
        yield a, case[a], b, case[b]
