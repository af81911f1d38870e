"""``--no-repeat-ngram-size`` for outputs that are written in several directions. Notation: docs/glossary.md."""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.ops.generation_order import GenerationOrder


class NoRepeatNgrams:
    """Forbids that an output, read as text, has an n-gram twice.

    What a slot may hold depends on the other words of the same step, so this is not a rule on the scores of a step
    (``rules.py``) but on candidates: :meth:`forbidden`. While an output is being written, only n-grams within the words
    of one direction are known; those that span two directions are known when it is complete: :meth:`repeats`.

    Args:
        size: n ≥ 1.
        order: the order in which the output is written.
    """

    def __init__(self, size: int, order: GenerationOrder) -> None:
        self.size = size
        self.order = order

    def forbidden(self, words: Tensor, chosen: Tensor, candidates: Tensor) -> Tensor:
        """Which candidates would repeat an n-gram of earlier steps or of this one: (R, k, m) bool.

        Args:
            words: the words of earlier steps in generation order, without start symbols, (R, T).
            chosen: k ways to fill the step's first p slots, (R, k, p).
            candidates: words for slot p, (R, m).
        """
        forbidden = []
        for before, ways, options in zip(words.tolist(), chosen.tolist(), candidates.tolist(), strict=True):
            banned = (self.banned(before + way) for way in ways)
            forbidden.append([[option in each for option in options] for each in banned])
        return torch.tensor(forbidden, device=candidates.device)

    def repeats(self, words: list[int]) -> bool:
        """Whether a complete output, in generation order and without end symbol, repeats an n-gram."""
        text = self.order.recover(torch.tensor(words, dtype=torch.long)).tolist()
        ngrams = self._ngrams(text, True)
        return len(set(ngrams)) < len(ngrams)

    def banned(self, words: list[int]) -> set[int]:
        """Words that the next slot, after ``words`` in generation order, must not hold."""
        h, slot = self.order.num_directions, len(words)
        forward = self.order.reads_forward(slot % h)
        seen = {ngram for d in range(h) for ngram in self._ngrams(words[d::h], self.order.reads_forward(d))}
        if self.size == 1:
            return {ngram[0] for ngram in seen}
        own = words[slot % h :: h]  # those of the slot's direction
        context = tuple(own[-(self.size - 1) :])
        if len(context) < self.size - 1:
            return set()
        if forward:
            return {ngram[-1] for ngram in seen if ngram[:-1] == context}
        return {ngram[0] for ngram in seen if ngram[1:] == context[::-1]}

    def _ngrams(self, words: list[int], forward: bool) -> list[tuple[int, ...]]:
        words = words if forward else words[::-1]
        return [tuple(words[i : i + self.size]) for i in range(len(words) - self.size + 1)]
