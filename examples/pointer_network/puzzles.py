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
    corners = [ConvexHull(cloud).vertices.tolist() for cloud in points]
    return [hull[hull.index(min(hull)) :] + hull[: hull.index(min(hull))] for hull in corners]


def tours(points: Points) -> Answers:
    """The shortest closed tours through points (B, n, 2), from point 0, the second less than the last: the programme of
    Held and Karp (1962), which takes 2ⁿ n² steps."""
    batch, n, _ = points.shape
    distance = np.linalg.norm(points[:, :, None] - points[:, None], axis=3)
    # Of each set of the points 1 … n-1 (a bit for each) and its last point: the length of the shortest path there from
    # point 0, and the point before the last.
    length = np.full((batch, 1 << (n - 1), n - 1), np.inf)
    before = np.zeros(length.shape, dtype=np.int64)
    for last in range(n - 1):
        length[:, 1 << last, last] = distance[:, 0, last + 1]
    for points_of in range(1, 1 << (n - 1)):
        for last in range(n - 1):
            others = points_of ^ (1 << last)
            if points_of >> last & 1 and others:
                paths = length[:, others] + distance[:, 1:, last + 1]
                length[:, points_of, last], before[:, points_of, last] = paths.min(axis=1), paths.argmin(axis=1)
    row, rest = np.arange(batch), np.full(batch, (1 << (n - 1)) - 1)
    last = (length[:, -1] + distance[:, 1:, 0]).argmin(axis=1)
    points_from_end = []
    for _ in range(n - 1):
        points_from_end.append(last + 1)
        last, rest = before[row, rest, last], rest ^ (1 << last)
    paths = np.stack(points_from_end, axis=1)
    backwards = paths[:, 0] > paths[:, -1]
    paths[backwards] = paths[backwards, ::-1]
    return [[0, *path] for path in paths.tolist()]


def area(points: Points, polygon: list[int]) -> float:
    """The area of a polygon with corners among points (n, 2)."""
    (x, y), (next_x, next_y) = points[polygon].T, np.roll(points[polygon], -1, axis=0).T
    return float(abs((x * next_y - next_x * y).sum()) / 2)


def is_simple(points: Points, polygon: list[int]) -> bool:
    """True if no two sides of a polygon with corners among points (n, 2), all different, cross."""
    begin = points[polygon]
    end = np.roll(begin, -1, axis=0)

    def left(of: Points) -> NDArray[np.bool_]:
        """True for points (k, 2) to the left of a side, (k sides, k)."""
        side, offset = (end - begin)[:, None], of[None] - begin[:, None]
        return np.asarray(side[..., 0] * offset[..., 1] > side[..., 1] * offset[..., 0])

    apart = left(begin) != left(end)  # the ends of side j are on both sides of side i
    i, j = np.indices(apart.shape)
    neighbours = np.isin((i - j) % len(polygon), (0, 1, len(polygon) - 1))
    return not (apart & apart.T & ~neighbours).any()


def tour_length(points: Points, tour: list[int]) -> float:
    """The length of a closed tour through points (n, 2)."""
    corners = points[tour]
    return float(np.linalg.norm(corners - np.roll(corners, 1, axis=0), axis=1).sum())


@dataclass(frozen=True)
class Puzzle:
    """A kind of question.

    Attributes:
        solve: points (B, n, 2) to the right answers.
        shortest: points (n) to the least length of an answer.
        max_points: the most points that have been tried.
        max_solved: the most points for which right answers are made.
    """

    solve: Callable[[Points], Answers]
    shortest: Callable[[int], int]
    max_points: int
    max_solved: int


PUZZLES = {
    "hull": Puzzle(hulls, lambda n: 3, 500, 500),
    "tour": Puzzle(tours, lambda n: n, 50, 12),
}
