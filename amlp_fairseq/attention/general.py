"""Attention with the similarity "general" of Luong et al. (2015). Notation: docs/glossary.md."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.softmax import SoftmaxAttention
from amlp_fairseq.attention.spec import AttentionSpec


def general_map(width: int) -> nn.Linear:
    """Map of queries h to W_aᵀ h, with W_a (d_h, d_h) initialised to I/√d_h."""
    w_a = nn.Linear(width, width, bias=False)  # its weight is W_aᵀ
    with torch.no_grad():
        w_a.weight.copy_(width**-0.5 * torch.eye(width))
    return w_a


@register_attention("general")
class GeneralAttention(SoftmaxAttention):
    """``softmax(Q W_a Kᵀ) V``: sim(s, h) = hᵀ W_a s, where h is a query and s a key. The heads share W_a
    (d_h, d_h), initialised to I/√d_h, which makes this attention equal to ``softmax``."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.scaling = 1.0
        self.w_a = general_map(self.head_dim)

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        return super().similarity(self.w_a(q), k)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return super()._attend(self.w_a(q), k, v, bias)
