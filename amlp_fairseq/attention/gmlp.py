"""gMLP (Liu et al. 2021): a gate computed by a learned map along the sequence, instead of self-attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from amlp_fairseq.attention.base import SelfAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.spec import AttentionSpec


@register_attention("gmlp")
class GatedMLP(SelfAttention):
    """Gated MLP of inputs X (T, d), with the spatial gating unit of Section 2.1:

        Z = gelu(X U),   (Z₁, Z₂) = split(Z),   out = (Z₁ ⊙ (W · norm(Z₂) + b)) V

    W (L, L) and b (L) are parameters, L the maximum length (``--max-source-positions`` or ``--max-target-positions``).
    W is initialised near 0 and b to 1.
    """

    patterns = ("noncausal self",)

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        dim = spec.option("embed_dim")
        self.num_heads, self.head_dim = 1, dim
        self.flag = f"--max-{'source' if spec.side == 'encoder' else 'target'}-positions"
        self.max_length = getattr(spec.options, self.flag[2:].replace("-", "_"))
        self.inner = nn.Linear(dim, 2 * dim)
        self.activation = nn.GELU()
        self.norm = nn.LayerNorm(dim)
        self.weight = nn.Parameter(torch.empty(self.max_length, self.max_length).normal_(std=1e-3))
        self.bias = nn.Parameter(torch.ones(self.max_length))
        self.outer = nn.Linear(dim, dim)

    def forward_full(self, x: Tensor, padding_mask: Tensor | None) -> Tensor:
        length = len(x)
        if length > self.max_length:
            raise ValueError(f"'gmlp' has weights for {self.max_length} positions ({self.flag}), not for {length}")
        content, gate = self.activation(self.inner(x)).chunk(2, dim=-1)
        gate = self.norm(gate)
        if padding_mask is None:
            gate = torch.einsum("ts,sbc->tbc", self.weight[:length, :length], gate) + self.bias[:length, None, None]
        else:
            # Positions are counted from the sentence's first word: padding may be on the left.
            position = (~padding_mask).cumsum(dim=1).sub(1).clamp(min=0)
            weight = self.weight[position.unsqueeze(2), position.unsqueeze(1)]  # (B, T, T)
            gate = gate.masked_fill(padding_mask.T.unsqueeze(2), 0)
            gate = torch.einsum("bts,sbc->tbc", weight, gate) + self.bias[position].T.unsqueeze(2)
        out: Tensor = self.outer(content * gate)
        return out
