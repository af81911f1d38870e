"""cosFormer (Qin et al. 2022): linear attention with weights that fall with the distance."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.attention.multihead import Memory, MultiHeadAttention
from amlp_fairseq.attention.registry import register_attention


@register_attention("cosformer")
class CosformerAttention(MultiHeadAttention):
    """Weights ``relu(q_i)ᵀ relu(k_j) cos(π/2 · (i - j)/M)`` (Eq. 10), M the longer of the sentence's two lengths; the
    cosine is expanded into products of the positions' sines and cosines (Eq. 12)."""

    def attend(
        self,
        q: Tensor,
        memory: Memory,
        padding_mask: Tensor | None = None,
        positions: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        k, v, key_padding_mask = memory["k"], memory["v"], memory.get("padding_mask")
        i, n = _positions(padding_mask, q)
        j, m = _positions(key_padding_mask, k)
        longest = torch.maximum(n, m)
        with torch.autocast(q.device.type, enabled=False):  # the sums would overflow
            k = F.relu(k.float())
            if key_padding_mask is not None:
                k = k.masked_fill(key_padding_mask[:, None, :, None], 0)
            query, key = _waves(F.relu(q.float()), i / longest), _waves(k, j / longest)
            norm = query @ key.sum(dim=2).unsqueeze(3)
            out = query @ (key.transpose(2, 3) @ v.float()) / norm.clamp(min=1e-6)
        return out.to(q), None


def _positions(padding_mask: Tensor | None, x: Tensor) -> tuple[Tensor, Tensor]:
    """Positions among those that are not padding (B, S), and how many there are (B, 1)."""
    seen = torch.ones(x.size(0), x.size(2), device=x.device) if padding_mask is None else (~padding_mask).float()
    return seen.cumsum(dim=1), seen.sum(dim=1, keepdim=True).clamp(min=1)


def _waves(x: Tensor, share: Tensor) -> Tensor:
    """(B, H, S, 2 d_h): ``x`` times cosine and sine of the positions."""
    angle = (math.pi / 2 * share)[:, None, :, None]
    return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)
