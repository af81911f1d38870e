"""``--no-repeat-ngram-size`` for outputs that are written in several directions."""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.order import GenerationOrder


class NGramBlocker:
    """Finds the words that would repeat an n-gram of the output, read as text.

    While the output is written, n-grams lie within what one direction has written; the seams between directions are
    known when it is complete (:meth:`repeats`).

    Args:
        size: n ≥ 1.
        order: the order in which the output is written.
    """

    def __init__(self, size: int, order: GenerationOrder) -> None:
        self.size = size
        self.order = order

    def banned(self, words: list[int], slot: int) -> set[int]:
        """Words that may not stand in ``slot``, given the words (in generation order) of some slots before it.

        ``words`` may end before ``slot``: what other slots of the same step hold is not known yet.
        """
        h, forward = self.order.num_directions, self.order.reads_forward(slot % self.order.num_directions)
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

    def repeats(self, words: list[int]) -> bool:
        """Whether a complete output, in generation order and without end symbol, repeats an n-gram."""
        text = self.order.recover(torch.tensor(words, dtype=torch.long)).tolist()
        ngrams = self._ngrams(text, True)
        return len(set(ngrams)) < len(ngrams)

    def _ngrams(self, words: list[int], forward: bool) -> list[tuple[int, ...]]:
        words = words if forward else words[::-1]
        return [tuple(words[i : i + self.size]) for i in range(len(words) - self.size + 1)]

    def forbid_history(self, lprobs: Tensor, tokens: Tensor) -> None:
        """Ban, in place, what would repeat an n-gram of earlier steps.

        Args:
            lprobs: log-probabilities of the next step, (N, z, V).
            tokens: the words so far in generation order, without start symbols, (N, T).
        """
        for row, words in enumerate(tokens.tolist()):
            # A direction's own words of this step come first in the context of its later ones (c > 1).
            for slot in range(min(self.order.num_directions, lprobs.size(1))):
                banned = self.banned(words, len(words) + slot)
                if banned:
                    lprobs[row, slot, list(banned)] = float("-inf")

    def forbid_within_step(self, tokens: Tensor, chosen: Tensor, candidates: Tensor) -> Tensor:
        """Which candidates would repeat an n-gram, given also the words chosen in this step: (N, k, m) bool.

        Args:
            tokens: as above, (N, T).
            chosen: the words chosen for the step's first p slots, (N, k, p).
            candidates: words for slot p, (N, m).
        """
        forbidden = torch.zeros(*chosen.shape[:2], candidates.size(1), dtype=torch.bool)
        for row, (words, rows, options) in enumerate(
            zip(tokens.tolist(), chosen.tolist(), candidates.tolist(), strict=True)
        ):
            for k, prefix in enumerate(rows):
                banned = self.banned(words + prefix, len(words) + len(prefix))
                for m, option in enumerate(options):
                    forbidden[row, k, m] = option in banned
        return forbidden.to(candidates.device)
