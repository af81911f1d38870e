"""Attention with the similarity "general" of Luong et al. (2015). Notation: docs/glossary.md."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.registry import AttentionSpec, register_attention
from amlp_fairseq.attention.softmax import SoftmaxAttention


def general_map(width: int) -> nn.Linear:
    """The map of queries h to W_aᵀ h, with W_a (d_h, d_h) = I/√d_h at first."""
    w_a = nn.Linear(width, width, bias=False)  # its weight is W_aᵀ
    with torch.no_grad():
        w_a.weight.copy_(width**-0.5 * torch.eye(width))
    return w_a


@register_attention("general")
class GeneralAttention(SoftmaxAttention):
    """``softmax(Q W_a Kᵀ) V``: sim(s, h) = hᵀ W_a s, where h is a query and s a key. W_a (d_h, d_h) is shared by the
    heads, and starts as I/√d_h, with which this is ``softmax``."""

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.scaling = 1.0
        self.w_a = general_map(self.head_dim)

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        return super().similarity(self.w_a(q), k)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        return super()._attend(self.w_a(q), k, v, bias)
