"""Train CopyNet, and the same model without its copies, to rewrite sentences by rules; print what share of new
sentences of each rule type they rewrite without a mistake.

    python examples/copynet/rewrite.py [--updates 500]

The data make themselves; minutes on one thread.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys

import torch
import torch.nn.functional as F
from copynet import CopyNet, numbered
from rules import END, LONGEST, PAD, START, TYPES, UNK, VOCABULARY, Pair, make_pair, make_rules
from torch import Tensor

from amlp_fairseq.common.arguments import Parser, positive
from amlp_fairseq.common.exit_handling import clear_endings
from amlp_fairseq.common.user_errors import one_line_errors

#: New sentences of each rule.
TEST = 100
#: Words of the longest target, and its end.
LONGEST_TARGET = 2 * LONGEST + 3 + 1


def batched(pairs: list[Pair]) -> tuple[Tensor, Tensor]:
    """Sources (B, S) and targets with start and end symbol (B, T), padded."""
    rows = [numbered(pair.source, pair.target, VOCABULARY) for pair in pairs]
    sources = [torch.tensor(source) for source, _ in rows]
    targets = [torch.tensor([START, *target, END]) for _, target in rows]
    source, target = (
        torch.nn.utils.rnn.pad_sequence(side, batch_first=True, padding_value=PAD) for side in (sources, targets)
    )
    return source, target


def loss(model: CopyNet, pairs: list[Pair]) -> Tensor:
    """- log p of the targets' words, mean. For a model without copies, words outside the vocabulary are ``UNK``."""
    source, target = batched(pairs)
    if not model.copies:
        target = target.masked_fill(target >= VOCABULARY, UNK)
    log_p = model(source, target[:, :-1])
    return F.nll_loss(log_p.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)


def train(copies: bool, updates: int, width: int, batch: int, lr: float, seed: int) -> CopyNet:
    """A model that has seen ``updates`` batches of new sentences; says its loss from time to time."""
    torch.manual_seed(seed)
    model, rng = CopyNet(VOCABULARY, width, copies), random.Random(seed)
    rules = make_rules(rng)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, updates)
    for update in range(1, updates + 1):
        value = loss(model, [make_pair(rng.choice(rules), rng) for _ in range(batch)])
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update % 200 == 0 or update == updates:
            name = "CopyNet" if copies else "without copies"
            print(f"{name}: update {update} of {updates}, loss {value:.3f}", file=sys.stderr)
    return model


def shares(model: CopyNet, seed: int) -> dict[str, float]:
    """The share of sentences of each rule type that are rewritten without a mistake; of the rules that ``train`` has
    with this seed, with new words."""
    rules, rng = make_rules(random.Random(seed)), random.Random(f"test {seed}")
    right = dict.fromkeys(TYPES, 0)
    for rule in rules:
        pairs = [make_pair(rule, rng) for _ in range(TEST)]
        source, target = batched(pairs)
        for answer, expected in zip(model.answer(source, LONGEST_TARGET), target.tolist(), strict=True):
            right[rule.kind] += answer == expected[1 : expected.index(END)]
    return {kind: count / TEST / (len(rules) / len(TYPES)) for kind, count in right.items()}


def main() -> None:
    with one_line_errors("rewrite.py"), clear_endings("rewrite.py"):
        parser = Parser(
            prog="rewrite.py",
            description=__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.add_argument("--updates", type=positive, default=500, help="of each training (default: 500)")
        parser.add_argument("--width", type=positive, default=128, help="of the models (default: 128)")
        parser.add_argument("--batch-size", type=positive, default=64, help="sentences of an update (default: 64)")
        parser.add_argument(
            "--lr", type=float, default=0.002, help="first learning rate of Adam, which falls to 0 (default: 0.002)"
        )
        parser.add_argument("--seed", type=positive, default=1, help="(default: 1)")
        args = parser.parse_args()
        if not args.lr > 0:
            raise ValueError(f"--lr {args.lr} must be above 0")
        print(f"| % right | {' | '.join(TYPES)} |\n|{'---|' * (len(TYPES) + 1)}")
        for copies in (False, True):
            model = train(copies, args.updates, args.width, args.batch_size, args.lr, args.seed)
            cells = (f"{100 * share:.1f}" for share in shares(model, args.seed).values())
            print(f"| {'CopyNet' if copies else 'without copies'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.WARNING)  # fairseq makes it DEBUG
    main()
