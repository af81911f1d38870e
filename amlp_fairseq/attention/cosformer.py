"""cosFormer (Qin et al. 2022): linear attention with weights that decrease with the distance."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.attention.multihead import KVMemory, MultiHeadAttention
from amlp_fairseq.attention.registry import register_attention
from amlp_fairseq.ops.precision import at_least_float32, sum_dtype


@register_attention("cosformer")
class CosformerAttention(MultiHeadAttention):
    """Weights ``relu(q_i)ᵀ relu(k_j) cos(π/2 · (i - j)/M)`` (Eq. 10), M the maximum of source and target length; the
    cosine is expanded into products of the positions' sines and cosines (Eq. 12)."""

    def attend(
        self,
        q: Tensor,
        memory: KVMemory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        k, v, key_padding_mask = memory["k"], memory["v"], memory.get("padding_mask")
        i, n = _positions(padding_mask, q)
        j, m = _positions(key_padding_mask, k)
        max_length = torch.maximum(n, m)
        with torch.autocast(q.device.type, enabled=False):  # the sums would overflow in half precision
            k = F.relu(at_least_float32(k))
            if key_padding_mask is not None:
                k = k.masked_fill(key_padding_mask[:, None, :, None], 0)
            query, key = _with_phase(F.relu(at_least_float32(q)), i / max_length), _with_phase(k, j / max_length)
            norm = query @ key.sum(dim=2).unsqueeze(3)
            out = query @ (key.transpose(2, 3) @ at_least_float32(v)) / norm.clamp(min=1e-6)
        return out.to(q), None


def _positions(padding_mask: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Positions counted from 1 without padding (B, S), and the number of words, at least 1 (B, 1)."""
    if padding_mask is None:
        padding_mask = torch.zeros(x.size(0), x.size(2), dtype=torch.bool, device=x.device)
    is_word = (~padding_mask).to(sum_dtype(x))
    return is_word.cumsum(dim=1), is_word.sum(dim=1, keepdim=True).clamp(min=1)


def _with_phase(x: Tensor, relative_position: Tensor) -> Tensor:
    """``x`` (B, H, S, d_h) times cosine and sine of π/2 · ``relative_position`` (B, S): (B, H, S, 2 d_h)."""
    angle = (math.pi / 2 * relative_position)[:, None, :, None]
    return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)
