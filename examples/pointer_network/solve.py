"""Train a pointer network on random points, and print how well it answers for points that it has not seen.

    python examples/pointer_network/solve.py hull [--points 5] [--updates 2000]
    python examples/pointer_network/solve.py tour [--points 5] [--updates 2000]

``hull`` asks for the corners of the convex hull, ``tour`` for the shortest tour through all points. The data make
themselves; minutes on one thread.
"""

from __future__ import annotations

import argparse
import logging
import sys

import numpy as np
import torch
from pointer_network import PointerNetwork
from puzzles import PUZZLES, Points, Puzzle, tour_length

from amlp_fairseq.cli.endings import clear_endings
from amlp_fairseq.compat.command_line import one_line_errors
from amlp_fairseq.recipes.config import refuse_unknown
from amlp_fairseq.usage import Parser, positive

#: Points of another seed than those of the training.
TEST, TEST_SEED = 1000, 1 << 32


def train(puzzle: Puzzle, points: int, updates: int, width: int, batch: int, lr: float, seed: int) -> PointerNetwork:
    """A network that has seen ``updates`` batches of random points; says its loss from time to time."""
    torch.manual_seed(seed)
    model, rng = PointerNetwork(width), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
    for update in range(1, updates + 1):
        given = rng.random((batch, points, 2))
        loss = model.loss(torch.from_numpy(given).float(), puzzle.solve(given), puzzle.shortest(points))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        if update % 200 == 0 or update == updates:
            print(f"update {update} of {updates}, loss {loss:.3f}", file=sys.stderr)
    return model


def report(name: str, given: Points, answers: list[list[int]]) -> str:
    """How the answers for points (B, n, 2) compare with the right ones."""
    right = PUZZLES[name].solve(given)
    exact = np.mean([found == expected for found, expected in zip(answers, right, strict=True)])
    text = f"{name} of {given.shape[1]} points: {100 * exact:.1f} % of {len(given)} answers are right"
    if name == "tour":
        found, best = (
            np.mean([tour_length(each, tour) for each, tour in zip(given, tours, strict=True)])
            for tours in (answers, right)
        )
        text += f"; mean length {found:.3f}, of the shortest tours {best:.3f}"
    return text


def main() -> None:
    with one_line_errors("solve.py"), clear_endings("solve.py"):
        parser = Parser(
            prog="solve.py",
            description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("puzzle", metavar="PUZZLE", help=f"one of {', '.join(PUZZLES)}")
        parser.add_argument("--points", type=positive, default=5, metavar="N", help="points of each (default: 5)")
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
        if not 3 <= args.points <= puzzle.most:
            raise ValueError(f"--points {args.points}: {args.puzzle} is for 3 to {puzzle.most} points")
        if not args.lr > 0:
            raise ValueError(f"--lr {args.lr} must be above 0")
        model = train(puzzle, args.points, args.updates, args.width, args.batch_size, args.lr, args.seed)
        given = np.random.default_rng(TEST_SEED).random((TEST, args.points, 2))
        answers = model.answer(torch.from_numpy(given).float(), puzzle.shortest(args.points))
        print(report(args.puzzle, given, answers))


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)  # fairseq makes it DEBUG
    main()
