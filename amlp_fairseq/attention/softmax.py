"""Softmax attention (Vaswani et al. 2017) through ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.attention.multihead import Memory, MultiHeadAttention
from amlp_fairseq.attention.registry import PATTERNS, register_attention


@register_attention("softmax")
class SoftmaxAttention(MultiHeadAttention):
    """``softmax(Q Kᵀ / √d_h) V``: what fairseq's MultiheadAttention computes."""

    patterns = PATTERNS
    takes_mask = True

    def read(
        self, q: Tensor, memory: Memory, padding_mask: Tensor | None, start: int, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        k, v, hidden = memory["k"], memory["v"], memory["padding_mask"]
        allowed = None if hidden is None else ~hidden[:, None, None]
        if not need_weights:
            return self._attend(q, k, v, allowed), None
        scores = (q * self.scaling) @ k.transpose(2, 3)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        weights = scores.float().softmax(dim=-1).to(scores)
        return self.dropout_module(weights) @ v, weights.mean(dim=1)

    def continue_causally(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: dict[str, Any],
        padding_mask: Tensor | None,
        attn_mask: Tensor | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        if state:
            k, v = torch.cat([state["k"], k], dim=2), torch.cat([state["v"], v], dim=2)
        mask = attn_mask
        if padding_mask is not None:
            mask = torch.zeros_like(padding_mask, dtype=q.dtype).masked_fill(padding_mask, float("-inf"))[:, None, None]
            mask = mask if attn_mask is None else mask + attn_mask
        return self._attend(q, k, v, mask), {"k": k, "v": v}

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        dropout = self.dropout_module.p if self.training or self.dropout_module.apply_during_inference else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
