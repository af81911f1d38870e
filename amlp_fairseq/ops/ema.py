"""Exponential moving average along a sequence, in linear time and without a loop over positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
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
    columns = x.movedim(-2, 0)  # a view as a matrix where the positions are outermost in memory: no copy then
    with torch.autocast(x.device.type, enabled=False):
        sums = _decaying_sum(columns.flatten(1).to(work), beta, 1 - beta)
    return sums.to(x.dtype).view(columns.shape).movedim(0, -2)


def _decaying_sum(x: Tensor, decay: float, factor: float = 1.0) -> Tensor:
    """``factor · Σ_{j≤i} decay^{i-j} x_j`` along the first axis of a matrix."""
    length = len(x)
    block = min(BLOCK, length)
    if rest := -length % block:
        x = F.pad(x, (0, 0, 0, rest))
    blocks = x.unflatten(0, (-1, block))
    i = torch.arange(block, device=x.device)
    powers = factor * (decay ** (i.unsqueeze(1) - i).clamp(min=0).to(x.dtype)).tril()
    sums = powers.expand(len(blocks), -1, -1) @ blocks
    if len(blocks) > 1:
        # What stands before a block: its predecessors' last sums, decayed by whole blocks.
        before = F.pad(_decaying_sum(sums[:-1, -1], decay**block), (0, 0, 1, 0))
        sums.addcmul_(decay ** (i + 1).to(x.dtype).unsqueeze(1), before.unsqueeze(1))
    return sums.flatten(0, 1)[:length]
