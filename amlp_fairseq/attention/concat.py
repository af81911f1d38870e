"""Attention with the similarity "concat" of Luong et al. (2015). Notation: docs/glossary.md."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.softmax import SoftmaxAttention
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.ops.precision import at_least_float32


@register_attention("concat")
class ConcatAttention(SoftmaxAttention):
    """Softmax of sim(s, h) = vᵀ tanh(W_a [h; s]), where h is a query and s a key. W_a (d_h, 2 d_h) is stored as its two
    halves; the heads share W_a and v (d_h,). Memory: d_h numbers per pair of positions."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.scaling = 1.0
        self.w_h = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.w_s = nn.Linear(self.head_dim, self.head_dim, bias=False)
        self.v = nn.Linear(self.head_dim, 1, bias=False)

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        h, s = self.w_h(q).unsqueeze(3), self.w_s(k).unsqueeze(2)
        return self.v(torch.tanh(h + s)).squeeze(4)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        scores = at_least_float32(self.similarity(q, k))
        if bias is not None:  # not -inf: a position may see nothing but padding
            scores = scores + bias.clamp(min=-1e4)
        return self.dropout_module(scores.softmax(dim=-1).to(v)) @ v
