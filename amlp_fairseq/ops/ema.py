"""Exponential moving average along a sequence, in linear time and without a loop over positions."""

from __future__ import annotations

import torch
from torch import Tensor

#: Positions whose averages are one product with a triangular matrix.
BLOCK = 64


def exponential_moving_average(x: Tensor, beta: float, padding_mask: Tensor | None = None) -> Tensor:
    """``y_i = β y_{i-1} + (1 - β) x_i`` with ``y_0 = 0`` (AMLP, Section 2.3.2), along the last axis but one.

    Within a block it is a product with the matrix (1 - β) β^{i-j}; the ends of the blocks are again such an average,
    with β to the power of the block's length. Differentiable any number of times. The sums are in float32, float64 for
    float64 inputs.

    Args:
        x: (B, …, n, d).
        beta: 0 ≤ β < 1.
        padding_mask: True for padding, (B, n). Padding counts as 0: before a sentence it changes nothing, and what the
            average is behind one must not be used.

    Returns:
        of the shape and type of ``x``.

    Raises:
        ValueError: for β outside of [0, 1).
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be at least 0 and less than 1, not {beta}")
    if padding_mask is not None:
        x = x.masked_fill(padding_mask.view(len(x), *[1] * (x.dim() - 3), -1, 1), 0)
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.autocast(x.device.type, enabled=False):
        return ((1 - beta) * _decaying_sum(x.to(work), beta)).to(x.dtype)


def _decaying_sum(x: Tensor, decay: float) -> Tensor:
    """``Σ_{j≤i} decay^{i-j} x_j``."""
    length = x.size(-2)
    block = min(BLOCK, length)
    blocks = -(-length // block)
    i = torch.arange(block, device=x.device)
    powers = (decay ** (i.unsqueeze(1) - i).clamp(min=0).to(x.dtype)).tril()
    padded = torch.nn.functional.pad(x, (0, 0, 0, blocks * block - length)).unflatten(-2, (blocks, block))
    sums = powers @ padded
    if blocks > 1:
        # What stands before a block: its predecessors' last sums, decayed by whole blocks.
        before = _decaying_sum(sums[..., :-1, -1, :], decay**block)
        carried = decay ** (i + 1).to(x.dtype).unsqueeze(1) * before.unsqueeze(-2)
        sums = torch.cat([sums[..., :1, :, :], sums[..., 1:, :, :] + carried], dim=-3)
    return sums.flatten(-3, -2)[..., :length, :]
