"""Sentences that rules rewrite, of the lecture's types: what stands for x or y is copied once, twice or not at all.

Half of its words are not in the vocabulary, so that they can only be copied.

A word is a number: below ``VOCABULARY`` in the model's vocabulary, above it not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

PAD, START, END, UNK = range(4)
#: The words that only rules have, and those that x and y have; the latter are in the vocabulary or not.
CONSTANTS, KNOWN, UNKNOWN = 60, 40, 1000
VOCABULARY = 4 + CONSTANTS + KNOWN
#: The variables in the target of each rule type; those in the source are its letters.
TYPES = {"x → ∅": "", "x → x": "x", "x → xx": "xx", "xy → x": "x", "xy → xy": "xy"}
#: The most words that a variable stands for.
LONGEST = 4


@dataclass(frozen=True)
class Rule:
    """Constants with variables between them: ``source[0] x source[1] …`` becomes ``target[0] x target[1] …``.

    Attributes:
        kind: one of ``TYPES``.
        source: the first of them tells the rule from others.
        target: one more than the type has variables.
    """

    kind: str
    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """A sentence, and what the rule makes of it."""

    kind: str
    source: list[int]
    target: list[int]


def make_rules(rng: random.Random, per_type: int = 3) -> list[Rule]:
    """``per_type`` rules of every type, with constants drawn at random.

    Raises:
        ValueError: if there are more rules than constants.
    """
    constants = range(4, 4 + CONSTANTS)
    first = iter(rng.sample(constants, per_type * len(TYPES)))
    return [
        Rule(
            kind,
            (next(first), *rng.choices(constants, k=len(kind.split()[0]))),
            tuple(rng.choices(constants, k=len(TYPES[kind]) + 1)),
        )
        for kind in TYPES
        for _ in range(per_type)
    ]


def make_pair(rule: Rule, rng: random.Random) -> Pair:
    """A sentence for the rule; half of the words of its variables are in the vocabulary."""

    def word() -> int:
        known = rng.random() < 0.5
        return rng.randrange(VOCABULARY - KNOWN, VOCABULARY) if known else VOCABULARY + rng.randrange(UNKNOWN)

    values = {name: [word() for _ in range(rng.randint(1, LONGEST))] for name in rule.kind.split()[0]}
    return Pair(
        rule.kind, _fill(rule.source, rule.kind.split()[0], values), _fill(rule.target, TYPES[rule.kind], values)
    )


def _fill(constants: Sequence[int], variables: str, values: dict[str, list[int]]) -> list[int]:
    words = [constants[0]]
    for name, constant in zip(variables, constants[1:], strict=True):
        words += [*values[name], constant]
    return words
