"""The words of non-autoregressive models: what they predict, apart from the symbols around them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from amlp_fairseq.ops.top_k import top_k


class NATWords:
    """A part of models of fairseq's NAT classes."""

    pad: int
    bos: int
    eos: int
    decoder: Any

    def words(self, tokens: Tensor) -> Tensor:
        """Mask of the positions that hold neither start, end nor padding."""
        return tokens.ne(self.pad) & tokens.ne(self.bos) & tokens.ne(self.eos)

    def predict(self, tokens: Tensor, encoder_out: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The log-probability of the best word at each position of the decoder's inputs (B, T), and the word, never
        start, end or padding."""
        scores = self.decoder(normalize=True, prev_output_tokens=tokens, encoder_out=encoder_out)
        for symbol in (self.pad, self.bos, self.eos):
            scores[..., symbol] = -torch.inf
        best, words = top_k(scores, 1)
        return best.squeeze(-1), words.squeeze(-1)
