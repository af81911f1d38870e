"""XCA: cross-covariance attention (El-Nouby et al. 2021, XCiT), attention between channels instead of positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.shared_options import OperatorOptions
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.ops.amlp_cov.op import cross_covariance


@register_attention("xca", options=OperatorOptions)
class XCAttention(MultiHeadAttention):
    """``out = V softmax(τ Q̂ᵀ K̂)ᵀ``, with the channels of Q̂ and K̂ normalised over the sequence and a learned τ per
    head. Queries and keys belong to one sequence: self-attention only."""

    patterns = ("noncausal self",)

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.temperature = nn.Parameter(torch.ones(self.num_heads))

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        k, v = memory["k"], memory["v"]
        weights = cross_covariance(q, k, self.temperature, padding_mask, backend=self.spec.options.operator_backend)
        return v @ self.dropout_module(weights.to(v)).transpose(2, 3), None
