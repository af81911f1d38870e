"""``--no-repeat-ngram-size`` in fairseq's own search, where its CUDA extension is not built."""

from __future__ import annotations

import functools

from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor


def install() -> None:
    """What a hypothesis ends with are its last words: stock looks at the end of a buffer, which is padding until the
    longest output is written, so that nothing is blocked."""
    stock = NGramRepeatBlock._no_repeat_ngram

    @functools.wraps(stock)
    def of_the_words(
        self: NGramRepeatBlock, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
    ) -> Tensor:
        return stock(self, tokens[:, : step + 1], lprobs, bsz, beam_size, step)  # a start symbol and ``step`` words

    NGramRepeatBlock._no_repeat_ngram = of_the_words
