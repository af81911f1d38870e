"""``--no-repeat-ngram-size`` for outputs that are written in several directions. Notation: docs/glossary.md."""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.ops.generation_order import GenerationOrder


class NoRepeatNgrams:
    """Forbids a repeated n-gram in an output, read as text.

    The candidates for a slot depend on the other words of the same step, so this rule does not apply to the scores of a
    step (``rules.py``) but to candidates: :meth:`forbidden`. While an output is being written, only n-grams within the
    words of one direction are known; n-grams across two directions are known when it is complete: :meth:`repeats`.

    Args:
        size: n ≥ 1.
        order: the order in which the output is written.
    """

    def __init__(self, size: int, order: GenerationOrder) -> None:
        self.size = size
        self.order = order

    def forbidden(self, words: Tensor, chosen: Tensor, candidates: Tensor) -> Tensor:
        """True for candidates that would repeat an n-gram of earlier steps or of this one: (R, k, m) bool.

        Args:
            words: the words of earlier steps in generation order, without start symbols, (R, T).
            chosen: k continuations so far, the words of the step's first p slots, (R, k, p).
            candidates: words for slot p, (R, m).
        """
        forbidden = []
        for prefix, continuations, row_candidates in zip(
            words.tolist(), chosen.tolist(), candidates.tolist(), strict=True
        ):
            banned_sets = (self.banned(prefix + continuation) for continuation in continuations)
            forbidden.append([[word in banned for word in row_candidates] for banned in banned_sets])
        return torch.tensor(forbidden, device=candidates.device)

    def repeats(self, words: list[int]) -> bool:
        """True if a complete output, in generation order and without end symbol, repeats an n-gram."""
        text = self.order.recover(torch.tensor(words, dtype=torch.long)).tolist()
        ngrams = self._ngrams(text, True)
        return len(set(ngrams)) < len(ngrams)

    def banned(self, words: list[int]) -> set[int]:
        """The words that the next slot, after ``words`` in generation order, must not hold."""
        h, slot = self.order.num_directions, len(words)
        forward = self.order.reads_forward(slot % h)
        seen = {ngram for d in range(h) for ngram in self._ngrams(words[d::h], self.order.reads_forward(d))}
        if self.size == 1:
            return {ngram[0] for ngram in seen}
        same_direction = words[slot % h :: h]
        context = tuple(same_direction[-(self.size - 1) :])
        if len(context) < self.size - 1:
            return set()
        if forward:
            return {ngram[-1] for ngram in seen if ngram[:-1] == context}
        return {ngram[0] for ngram in seen if ngram[1:] == context[::-1]}

    def _ngrams(self, words: list[int], forward: bool) -> list[tuple[int, ...]]:
        words = words if forward else words[::-1]
        return [tuple(words[i : i + self.size]) for i in range(len(words) - self.size + 1)]
