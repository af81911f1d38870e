"""Causal attention computed from sums over the previous positions; the sums are its decoding state. Notation:
docs/glossary.md."""

from __future__ import annotations

from torch import Tensor

from amlp_fairseq.attention.multihead import MultiHeadAttention
from amlp_fairseq.attention.state import State, StepContext, overwrite


class RunningSums(MultiHeadAttention):
    """Base class of attentions with running sums; subclasses implement ``init_state`` and ``continue_sums``."""

    def continue_sums(
        self, q: Tensor, k: Tensor, v: Tensor, sums: State, padding_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        """Causal attention at positions that follow the positions in ``sums``.

        Args:
            q: queries (B, H, T, d_h).
            k: keys (B, H, T, d_h).
            v: values (B, H, T, d_h).
            sums: sums over the previous positions.
            padding_mask: True at padding, (B, T).

        Returns:
            Outputs (B, H, T, d_h), and the sums with the new positions added.
        """
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
