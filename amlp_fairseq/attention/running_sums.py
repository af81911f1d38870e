"""Causal attention from sums over the positions so far, which are its decoding state. Notation: docs/glossary.md."""

from __future__ import annotations

from torch import Tensor

from amlp_fairseq.attention.multihead import MultiHeadAttention
from amlp_fairseq.attention.state import State, StepContext, overwrite


class RunningSums(MultiHeadAttention):
    """Subclasses implement ``init_state`` and ``continue_sums``."""

    def continue_sums(
        self, q: Tensor, k: Tensor, v: Tensor, sums: State, padding_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        """Outputs (B, H, T, d_h) at the positions after those in ``sums``, and the sums with these positions added."""
        raise NotImplementedError

    def attend_causally(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        return self.continue_sums(q, k, v, self.init_state(len(q), 0, q), padding_mask)[0]

    def step_causally(self, q: Tensor, kv: Tensor, state: State, context: StepContext) -> Tensor:
        k, v = kv.unbind(2)
        out, sums = self.continue_sums(q, k, v, state, None)
        overwrite(state, sums)
        return out
