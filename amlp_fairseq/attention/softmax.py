"""Softmax attention (Vaswani et al. 2017) through ``torch.nn.functional.scaled_dot_product_attention``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.spec import PATTERNS
from amlp_fairseq.attention.state import State, StepContext
from amlp_fairseq.ops.precision import sum_dtype

#: Maximum number of queries for which a packed attention computes explicit scores on a CPU: for 1 to 4 rows of 2 to 4
#: words this takes half as long as the fused operator.
SMALL_QUERY = 64


@register_attention("softmax")
class SoftmaxAttention(MultiHeadAttention):
    """``softmax(Q Kᵀ / √d_h) V``, as fairseq's MultiheadAttention. The decoding state is the keys and values of all
    words."""

    patterns = PATTERNS
    takes_mask = True
    per_position = ("kv",)

    def describe(self) -> dict[str, Any]:
        return {"kind": "softmax", "heads": self.num_heads}

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> KVMemory:
        return with_bias(k, v, padding_mask)

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        k, v, bias = memory["k"], memory["v"], memory.get("bias")
        if not need_weights:
            return self._attend(q, k, v, bias), None
        scores = self.similarity(q, k)
        scores = scores if bias is None else scores + bias
        weights = scores.softmax(dim=-1, dtype=sum_dtype(scores)).to(scores)
        return self.dropout_module(weights) @ v, weights.mean(dim=1)

    def attend_causally(
        self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None, attn_mask: Tensor | None
    ) -> Tensor:
        if padding_mask is None:
            return self._attend(q, k, v, attn_mask)
        bias = padding_bias(padding_mask, q)
        return self._attend(q, k, v, bias if attn_mask is None else bias + attn_mask)

    def init_state(self, rows: int, slots: int, like: Tensor) -> State:
        return {"kv": like.new_zeros(rows, self.num_heads, 2, slots, self.head_dim)}

    def step_causally(self, q: Tensor, kv: Tensor, state: State, context: StepContext) -> Tensor:
        k, v = context.write(state["kv"], kv).unbind(2)
        return self._attend(q, k, v, context.bias)

    def pack_projections(
        self, pack: Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]], query_scale: float = 1.0
    ) -> None:
        super().pack_projections(pack, query_scale * self.scaling)
        if self.packed:
            self.scaling = 1.0

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        """Scores (B, H, n, m) of queries (B, H, n, d_h) and keys (B, H, m, d_h)."""
        return (q * self.scaling) @ k.transpose(2, 3)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """softmax(Q Kᵀ / √d_h + bias) V (B, H, n, d_h) for queries (B, H, n, d_h), keys and values (B, H, m, d_h)."""
        if self.packed and 1 < q.size(2) <= SMALL_QUERY and not q.is_cuda:
            return attend_small_query(q, k, v, bias)
        drops_out = not self.packed and (self.training or self.dropout_module.apply_during_inference)
        return attend(q, k, v, bias, self.scaling, self.dropout_module.p if drops_out else 0.0)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, dropout: float = 0.0) -> Tensor:
    """softmax(scale · Q Kᵀ + bias) V with dropout of the weights, (B, H, n, d_h), for queries (B, H, n, d_h), keys and
    values (B, H, m, d_h).

    In bfloat16 on a CPU and without dropout, explicit scores are used for up to 512 keys: their gradients are up to 10
    times as fast as the fused operator's for sentences, and slower only from about 1024 words (torch 2.13).
    """
    if dropout == 0 and q.requires_grad and k.is_cpu and k.dtype == torch.bfloat16 and k.size(2) <= 512:
        if bias is not None:  # finite: queries in left padding see no key
            bias = bias.clamp(min=torch.finfo(k.dtype).min)
        return attend_small_query(q * scale, k, v, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)


def attend_small_query(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """softmax(Q Kᵀ + bias) V through explicit scores, (B, H, n, d_h)."""
    batch, heads, queries, width = q.size(0), q.size(1), q.size(2), q.size(3)
    q, k, v = q.reshape(-1, queries, width), k.flatten(0, 1), v.flatten(0, 1)
    if bias is None:
        scores = torch.bmm(q, k.mT)
    else:
        if bias.dim() == 4:
            bias = bias.expand(-1, heads, -1, -1).flatten(0, 1)
        scores = torch.baddbmm(bias, q, k.mT)
    return torch.bmm(scores.softmax(dim=-1), v).view(batch, heads, queries, width)


def with_bias(k: Tensor, v: Tensor, padding_mask: Tensor | None) -> KVMemory:
    """Memory of keys and values (B, H, S, d_h), with the bias of their padding mask (B, S) as ``bias``."""
    memory = {"k": k, "v": v}
    return memory if padding_mask is None else {**memory, "bias": padding_bias(padding_mask, k)}


def padding_bias(padding_mask: Tensor, like: Tensor) -> Tensor:
    """Bias (B, 1, 1, S) of a padding mask (B, S)."""
    return mask_bias(padding_mask, like)[:, None, None]


def mask_bias(mask: Tensor, like: Tensor) -> Tensor:
    """-inf where the mask is True, 0 elsewhere, in the dtype of ``like``."""
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
