"""``--no-repeat-ngram-size`` for outputs that are written in several directions."""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.order import GenerationOrder


class NoRepeatNgrams:
    """No n-gram twice in an output, read as text.

    What a slot may hold depends on the other words of the same step, so this is no rule on the scores of a step
    (``rules.py``) but one on candidates: :meth:`forbidden`. While an output is written, only the n-grams within what
    one direction has written are known. Those that span two directions are known when it is complete: :meth:`repeats`.

    Args:
        size: n ≥ 1.
        order: the order in which the output is written.
    """

    def __init__(self, size: int, order: GenerationOrder) -> None:
        self.size = size
        self.order = order

    def forbidden(self, words: Tensor, chosen: Tensor, candidates: Tensor) -> Tensor:
        """Which candidates would repeat an n-gram of earlier steps or of this one: (N, k, m) bool.

        Args:
            words: the words of earlier steps in generation order, without start symbols, (N, T).
            chosen: k ways to fill the step's first p slots, (N, k, p).
            candidates: words for slot p, (N, m).
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
        """Words that may not stand in the slot behind ``words``, which are in generation order."""
        h, slot = self.order.num_directions, len(words)
        forward = self.order.reads_forward(slot % h)
        seen = {ngram for d in range(h) for ngram in self._ngrams(words[d::h], self.order.reads_forward(d))}
        if self.size == 1:
            return {ngram[0] for ngram in seen}
        run = words[slot % h :: h]
        context = tuple(run[-(self.size - 1) :])
        if len(context) < self.size - 1:
            return set()
        if forward:
            return {ngram[-1] for ngram in seen if ngram[:-1] == context}
        return {ngram[0] for ngram in seen if ngram[1:] == context[::-1]}

    def _ngrams(self, words: list[int], forward: bool) -> list[tuple[int, ...]]:
        words = words if forward else words[::-1]
        return [tuple(words[i : i + self.size]) for i in range(len(words) - self.size + 1)]
