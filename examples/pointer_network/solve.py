"""Train a pointer network on random points, and print how well it answers for points that it has not seen.

    python examples/pointer_network/solve.py hull [--points 5] [--updates 2000]
    python examples/pointer_network/solve.py hull --points 5-50 --test-points 5 10 50 100 200 500
    python examples/pointer_network/solve.py tour [--points 5] [--updates 2000]

``hull`` asks for the corners of the convex hull, ``tour`` for the shortest tour through all points. The data make
themselves; minutes on one thread. Of each batch the number of points is drawn from a range.
"""

from __future__ import annotations

import argparse
import logging
import sys

import numpy as np
import torch
from pointer_network import PointerNetwork
from puzzles import PUZZLES, Points, Puzzle, area, is_simple, tour_length

from amlp_fairseq.common.arguments import Parser, positive, refuse_unknown
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.user_errors import one_line_errors

#: Points of another seed than those of the training.
TEST_SEED = 1 << 32


def train(puzzle: Puzzle, points: range, updates: int, width: int, batch: int, lr: float, seed: int) -> PointerNetwork:
    """A network that has seen ``updates`` batches of as many random points as one of ``points``; says its loss from
    time to time."""
    torch.manual_seed(seed)
    model, rng = PointerNetwork(width), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
    for update in range(1, updates + 1):
        sets = rng.random((batch, int(rng.choice(points)) if len(points) > 1 else points[0], 2))
        loss = model.loss(torch.from_numpy(sets).float(), puzzle.solve(sets), puzzle.shortest(sets.shape[1]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        if update % 200 == 0 or update == updates:
            print(f"update {update} of {updates}, loss {loss:.3f}", file=sys.stderr)
    return model


def report(name: str, sets: Points, answers: list[list[int]]) -> str:
    """A comparison of the answers for points (B, n, 2) with the right ones, where these are known.

    Of hulls also the mean of the area of the right one that those answers cover which are polygons, and how many are.
    """
    n = sets.shape[1]
    measure = tour_length if name == "tour" else area
    sizes = [measure(points, answer) for points, answer in zip(sets, answers, strict=True)]
    if n > PUZZLES[name].max_solved:
        return f"{name} of {n} points: mean length of {len(sets)} answers {np.mean(sizes):.3f}"
    right = PUZZLES[name].solve(sets)
    best = [measure(points, answer) for points, answer in zip(sets, right, strict=True)]
    exact = np.mean([answer == expected for answer, expected in zip(answers, right, strict=True)])
    text = f"{name} of {n} points: {100 * exact:.1f} % of {len(sets)} answers are right"
    if name == "tour":
        return text + f"; mean length {np.mean(sizes):.3f}, of the shortest tours {np.mean(best):.3f}"
    simple = [is_simple(points, answer) for points, answer in zip(sets, answers, strict=True)]
    covered = np.mean(
        [size / right_size for size, right_size, fine in zip(sizes, best, simple, strict=True) if fine] or [0.0]
    )
    return text + f"; area {100 * covered:.1f} % of the {sum(simple)} that are simple polygons"


def number_range(text: str) -> range:
    """``5``, or ``5-50`` with both ends."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last.isdecimal() or text == first)) or int(first) > int(last or first):
        raise argparse.ArgumentTypeError(f"must be a number or a range like 5-50, not {text!r}")
    return range(int(first), int(last or first) + 1)


def check_points(flag: str, name: str, smallest: int, largest: int, limit: int) -> None:
    """Raise ValueError for numbers of points that a puzzle does not have."""
    if not 3 <= smallest <= largest <= limit:
        raise ValueError(f"{flag} {smallest if smallest < 3 else largest}: {name} is for 3 to {limit} points")


def main() -> None:
    with one_line_errors("solve.py"), clear_endings("solve.py"):
        parser = Parser(
            prog="solve.py",
            description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("puzzle", metavar="PUZZLE", help=f"one of {', '.join(PUZZLES)}")
        parser.add_argument(
            "--points", type=number_range, default="5", metavar="N[-M]", help="points of the training (default: 5)"
        )
        parser.add_argument(
            "--test-points", type=positive, nargs="+", metavar="N", help="points of the tests (default: the training's)"
        )
        parser.add_argument("--test-sets", type=positive, default=1000, help="sets of points of a test (default: 1000)")
        parser.add_argument("--updates", type=positive, default=2000, help="of the training (default: 2000)")
        parser.add_argument("--width", type=positive, default=64, help="of the LSTMs (default: 64)")
        parser.add_argument("--batch-size", type=positive, default=128, help="answers of an update (default: 128)")
        parser.add_argument(
            "--lr", type=float, default=0.005, help="first learning rate of Adam, which falls to 0 (default: 0.005)"
        )
        parser.add_argument("--seed", type=positive, default=1, help="(default: 1)")
        args = parser.parse_args()
        refuse_unknown([args.puzzle], PUZZLES, "PUZZLE")
        puzzle = PUZZLES[args.puzzle]
        tests = args.test_points or sorted({args.points[0], args.points[-1]})
        check_points("--points", args.puzzle, args.points[0], args.points[-1], puzzle.max_solved)
        check_points("--test-points", args.puzzle, min(tests), max(tests), puzzle.max_points)
        if not args.lr > 0:
            raise ValueError(f"--lr {args.lr} must be above 0")
        model = train(puzzle, args.points, args.updates, args.width, args.batch_size, args.lr, args.seed)
        for points in tests:
            sets = np.random.default_rng(TEST_SEED).random((args.test_sets, points, 2))
            answers = model.answer(torch.from_numpy(sets).float(), puzzle.shortest(points))
            print(report(args.puzzle, sets, answers), flush=True)


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)  # fairseq makes it DEBUG
    main()
