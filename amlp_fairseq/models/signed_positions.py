"""Sinusoidal position encoding for positive and negative positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class SignedSinusoidalPositionalEmbedding(nn.Module):
    """Encoding PE(p) = [sin(p·ω_1), …, sin(p·ω_D/2), cos(p·ω_1), …], ω_i = 10000^(-(i-1)/(D/2-1)), of any integer p.

    The layout and frequencies of fairseq's sinusoidal embedding, computed on demand, without a maximum position.
    Negative positions: Zhang et al. (2020), Eq. 7.

    Args:
        embed_dim: D, even.
    """

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        if embed_dim % 2:
            raise ValueError(f"--decoder-embed-dim must be even for sinusoidal positions, not {embed_dim}")
        self.embed_dim = embed_dim

    def forward(self, positions: Tensor) -> Tensor:
        """Encodings (…, D) of positions (…), in float32 for models of any dtype."""
        half = self.embed_dim // 2
        exponents = torch.arange(half, device=positions.device, dtype=torch.float) / max(half - 1, 1)
        angles = positions.unsqueeze(-1) * torch.exp(exponents * -math.log(10000))
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
