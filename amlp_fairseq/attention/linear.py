"""Linearised attentions: softmax(Q Kᵀ) is replaced by φ(Q) φ(K)ᵀ, so that φ(K)ᵀ V can be computed once."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.attention.shared_options import InnerDimOptions
from amlp_fairseq.attention.spec import AttentionSpec
from amlp_fairseq.ops.precision import at_least_float32


class LinearizedAttention(MultiHeadAttention):
    """``out_i = φ(q_i)ᵀ Σ_j φ'(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ'(k_j)``; subclasses define φ and φ'."""

    patterns = ("noncausal self", "noncausal cross", "causal cross")

    def query_features(self, q: Tensor) -> Tensor:
        """φ of queries (B, H, T, d_h) in float32: (B, H, T, f)."""
        raise NotImplementedError

    def key_features(self, k: Tensor, padding_mask: Tensor | None) -> Tensor:
        """φ' of keys (B, H, S, d_h) in float32: (B, H, S, f); values at padding, True in ``padding_mask`` (B, 1, S, 1),
        are ignored."""
        raise NotImplementedError

    def make_memory(self, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> KVMemory:
        if padding_mask is not None:
            padding_mask = padding_mask[:, None, :, None]
        with torch.autocast(k.device.type, enabled=False):  # the sums would overflow in half precision
            features = self.key_features(at_least_float32(k), padding_mask)
            if padding_mask is not None:
                features = features.masked_fill(padding_mask, 0)
            return {
                "products": features.transpose(2, 3) @ at_least_float32(v),
                "norm": features.sum(dim=2).unsqueeze(3),
            }

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        with torch.autocast(q.device.type, enabled=False):
            features = self.query_features(at_least_float32(q))
            out = features @ memory["products"] / (features @ memory["norm"]).clamp(min=1e-12)
        return out.to(q), None


@register_attention("linear")
class LinearAttention(LinearizedAttention):
    """Linear attention with φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, Eq. 7)."""

    def query_features(self, q: Tensor) -> Tensor:
        return F.elu(q) + 1

    def key_features(self, k: Tensor, padding_mask: Tensor | None) -> Tensor:
        return F.elu(k) + 1


@register_attention("performer", options=InnerDimOptions)
class PerformerAttention(LinearizedAttention):
    """Positive random features of the softmax kernel (Choromanski et al. 2021, Lemma 1, "FAVOR+"):

        φ(x) = exp(w_rᵀ x' - ‖x'‖²/2),   x' = x / d_h^¼,   r = 1 … c

    with orthogonal directions w_r, drawn once and stored in the checkpoint; c is ``--attention-inner-dim``. The maximum
    of each query's exponents, and the maximum over all keys, is subtracted before exp; both cancel in the result.
    """

    directions: Tensor

    def __init__(self, spec: AttentionSpec) -> None:
        super().__init__(spec)
        self.register_buffer("directions", _orthogonal(spec.count("attention_inner_dim"), self.head_dim))

    def query_features(self, q: Tensor) -> Tensor:
        exponents = self._exponents(q)
        return (exponents - exponents.amax(dim=-1, keepdim=True).detach()).exp()

    def key_features(self, k: Tensor, padding_mask: Tensor | None) -> Tensor:
        exponents = self._exponents(k)
        if padding_mask is not None:
            exponents = exponents.masked_fill(padding_mask, -1e4)
        return (exponents - exponents.amax(dim=(2, 3), keepdim=True).detach()).exp()

    def _exponents(self, x: Tensor) -> Tensor:
        x = x * self.head_dim**-0.25
        return x @ self.directions.to(x).T - x.square().sum(dim=-1, keepdim=True) / 2


def _orthogonal(count: int, width: int) -> Tensor:
    """Directions (count, width), orthogonal in blocks of ``width``, with norms of Gaussian vectors."""
    draws = (torch.linalg.qr(torch.randn(width, width)) for _ in range(math.ceil(count / width)))
    blocks = [q * r.diagonal().sign() for q, r in draws]  # makes Q uniformly distributed
    return torch.cat(blocks)[:count] * torch.randn(count, width).norm(dim=1, keepdim=True)
