"""Points in the unit square with what a pointer network is to say of them: their convex hull, or their shortest tour.

An answer is a sequence of numbers of points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

Points = NDArray[np.float64]
Answers = list[list[int]]


def hulls(points: Points) -> Answers:
    """The corners of the convex hulls of points (B, n, 2), counterclockwise, from the corner with the least number."""
    corners = [ConvexHull(each).vertices.tolist() for each in points]
    return [each[each.index(min(each)) :] + each[: each.index(min(each))] for each in corners]


def tours(points: Points) -> Answers:
    """The shortest closed tours through points (B, n, 2), from point 0, the second less than the last: the programme of
    Held and Karp (1962), which takes 2ⁿ n² steps."""
    batch, n, _ = points.shape
    distance = np.linalg.norm(points[:, :, None] - points[:, None], axis=3)
    # Of each set of the points 1 … n-1 (a bit for each) and its last point: the length of the best way there from point
    # 0, and the point before the last.
    length = np.full((batch, 1 << (n - 1), n - 1), np.inf)
    before = np.zeros(length.shape, dtype=np.int64)
    for last in range(n - 1):
        length[:, 1 << last, last] = distance[:, 0, last + 1]
    for points_of in range(1, 1 << (n - 1)):
        for last in range(n - 1):
            others = points_of ^ (1 << last)
            if points_of >> last & 1 and others:
                ways = length[:, others] + distance[:, 1:, last + 1]
                length[:, points_of, last], before[:, points_of, last] = ways.min(axis=1), ways.argmin(axis=1)
    row, rest = np.arange(batch), np.full(batch, (1 << (n - 1)) - 1)
    last = (length[:, -1] + distance[:, 1:, 0]).argmin(axis=1)
    found = []
    for _ in range(n - 1):
        found.append(last + 1)
        last, rest = before[row, rest, last], rest ^ (1 << last)
    ways_round = np.stack(found, axis=1)
    backwards = ways_round[:, 0] > ways_round[:, -1]
    ways_round[backwards] = ways_round[backwards, ::-1]
    return [[0, *way] for way in ways_round.tolist()]


def area(points: Points, polygon: list[int]) -> float:
    """Of a polygon with corners among points (n, 2)."""
    (x, y), (next_x, next_y) = points[polygon].T, np.roll(points[polygon], -1, axis=0).T
    return float(abs((x * next_y - next_x * y).sum()) / 2)


def is_simple(points: Points, polygon: list[int]) -> bool:
    """Whether no two sides of a polygon with corners among points (n, 2), all different, cross."""
    begin = points[polygon]
    end = np.roll(begin, -1, axis=0)

    def left(of: Points) -> NDArray[np.bool_]:
        """Whether points (k, 2) are to the left of each side, (k sides, k)."""
        side, way = (end - begin)[:, None], of[None] - begin[:, None]
        return np.asarray(side[..., 0] * way[..., 1] > side[..., 1] * way[..., 0])

    apart = left(begin) != left(end)  # the ends of side j are on both sides of side i
    i, j = np.indices(apart.shape)
    neighbours = np.isin((i - j) % len(polygon), (0, 1, len(polygon) - 1))
    return not (apart & apart.T & ~neighbours).any()


def tour_length(points: Points, tour: list[int]) -> float:
    """Of a closed tour through points (n, 2)."""
    way = points[tour]
    return float(np.linalg.norm(way - np.roll(way, 1, axis=0), axis=1).sum())


@dataclass(frozen=True)
class Puzzle:
    """A kind of question.

    Attributes:
        solve: points (B, n, 2) to the right answers.
        shortest: points (n) to the least length of an answer.
        most: the most points that have been tried.
        most_solved: the most points for which right answers are made.
    """

    solve: Callable[[Points], Answers]
    shortest: Callable[[int], int]
    most: int
    most_solved: int


PUZZLES = {
    "hull": Puzzle(hulls, lambda n: 3, 500, 500),
    "tour": Puzzle(tours, lambda n: n, 50, 12),
}
