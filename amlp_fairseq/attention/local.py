"""Softmax attention within a window.

Sources: "self-attention baseline (k=3,7,15,31x3)" of Wu et al. (2019), Table 3; "local" of the AMLP paper, Table 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.attention.multihead import Memory, MultiHeadAttention
from amlp_fairseq.attention.registry import PATTERNS, Place, register_attention

#: Queries that are treated together, at least.
BLOCK = 32


@register_attention("local")
class LocalAttention(MultiHeadAttention):
    """Softmax attention to k positions; memory and time are linear in the length.

    k is ``--attention-window``, or else the layer's entry of the kernel size list.

    - noncausal self: a window centred on the position;
    - causal self: the last k positions, counted from the end of the step where a step has several words. The decoding
      state are the last k - z keys and values;
    - noncausal cross: centred on the source position that has the query's place in its sentence, ⌊(i + ½) m/n⌋ for
      query i of n and m source positions;
    - causal cross: centred on source position i, the last one if there is none, for n is not known yet.
    """

    patterns = PATTERNS

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        k = place.options.attention_window or place.kernel_size
        if k < 1:
            raise ValueError(f"--attention-window {k} must be at least 1")
        self.step = place.words_per_step
        if place.pattern == "causal cross" and self.step > 1:
            raise ValueError(
                f"--{place.side}-cross-attention-type local follows the source from left to right: it cannot write "
                f"{self.step} words per step"
            )
        self.left, self.right = (k - 1, 0) if place.pattern == "causal self" else ((k - 1) // 2, k // 2)

    def read(
        self, q: Tensor, memory: Memory, padding_mask: Tensor | None, start: int, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        k, v, hidden = memory["k"], memory["v"], memory["padding_mask"]
        if not self.place.cross:
            return self._windows(q, k, v, hidden, 0), None
        return self._aligned(q, k, v, hidden, padding_mask, start), None

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
        out = self._windows(q, k, v, padding_mask, k.size(2) - q.size(2))
        kept = k.size(2) - max(self.left + 1 - self.step, 0)
        return out, {"k": k[:, :, max(kept, 0) :].clone(), "v": v[:, :, max(kept, 0) :].clone()}

    def _windows(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, history: int) -> Tensor:
        """Self-attention of queries (B, H, T, d_h), the first of which stands at key ``history``: in blocks of
        queries, each with the span of keys that its windows reach."""
        length, keys, device = q.size(2), k.size(2), q.device
        reach = self.right + self.step - 1  # from a query to the right
        block = min(max(BLOCK, self.left + reach), length)
        blocks = -(-length // block)
        span = block + self.left + reach
        before, behind = self.left - history, blocks * block - length + reach

        def spans(x: Tensor) -> Tensor:
            """(B, H, S, …) to (B, H, blocks, …, span)."""
            x = x[:, :, max(-before, 0) :]
            return F.pad(x, [0, 0] * (x.dim() - 3) + [max(before, 0), behind]).unfold(2, span, block)

        query = torch.arange(blocks * block, device=device).view(blocks, block, 1)
        end = query // self.step * self.step + self.step - 1 + history
        key = query[:, :1] + history - self.left + torch.arange(span, device=device)
        allowed = (key >= end - self.left) & (key <= end + self.right) & (key >= 0) & (key < keys)
        if hidden is not None:
            allowed = allowed & spans(~hidden[:, None])[:, :, :, None]
        q = F.pad(q, [0, 0, 0, blocks * block - length]).unflatten(2, (blocks, block))
        out = self._attend(q, spans(k), spans(v).transpose(3, 4), allowed)
        return out.flatten(2, 3)[:, :, :length]

    def _aligned(
        self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, padding_mask: Tensor | None, start: int
    ) -> Tensor:
        """Cross-attention of queries (B, H, T, d_h), the first at position ``start``."""
        (batch, heads, length, width), source = q.shape, k.size(2)
        first, m = _extent(hidden, batch, source, q.device)
        i = torch.arange(start, start + length, device=q.device)
        if self.place.causal:
            centre = torch.minimum(i, m - 1)
        else:
            first_query, n = _extent(padding_mask, batch, length, q.device)
            centre = (2 * (i - first_query) + 1) * m // (2 * n)
        window = centre.unsqueeze(2) + torch.arange(-self.left, self.right + 1, device=q.device)  # (B, T, k)
        allowed = (window >= 0) & (window < m.unsqueeze(2))
        index = (window + first.unsqueeze(2)).clamp(0, source - 1).view(batch, 1, -1, 1)

        def windows(x: Tensor) -> Tensor:
            """(B, H, S, d_h) to (B, H, T, k, d_h)."""
            return x.gather(2, index.expand(batch, heads, -1, width)).unflatten(2, (length, -1))

        out = self._attend(q.unsqueeze(3), windows(k).transpose(3, 4), windows(v), allowed[:, None, :, None])
        return out.squeeze(3)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
        """Softmax attention of (…, T, d_h) over keys (…, d_h, S) and values (…, S, d_h)."""
        scores = ((q * self.scaling) @ k).float()
        # Not -inf: a window may hold nothing but padding, and a softmax over nothing is undefined.
        return self.dropout_module(scores.masked_fill(~allowed, -1e4).softmax(dim=-1).to(q)) @ v


def _extent(hidden: Tensor | None, batch: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First position that is not padding, and how many there are (1 if none): (B, 1) each."""
    if hidden is None:
        return torch.zeros(batch, 1, dtype=torch.long, device=device), torch.full((batch, 1), length, device=device)
    return (~hidden).int().argmax(dim=1, keepdim=True), (~hidden).sum(dim=1, keepdim=True).clamp(min=1)
