"""Exponential moving average along a sequence, in linear time and without a loop over positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from amlp_fairseq.ops.precision import sum_dtype

#: Number of positions whose averages are computed by one product with a triangular matrix.
BLOCK = 64


def exponential_moving_average(x: Tensor, beta: float, padding_mask: Tensor | None = None) -> Tensor:
    """Compute ``y_i = β y_{i-1} + (1 - β) x_i`` with ``y_0 = 0`` (AMLP, Section 2.3.2), along the last axis but one.

    Within a block the average is a product with the matrix (1 - β) β^{i-j}. The averages at the ends of the blocks are
    computed by the same recursion, with β to the power of the block length. Differentiable any number of times. Sums
    are float32, or float64 for float64 inputs.

    Args:
        x: (B, …, n, d).
        beta: 0 ≤ β < 1.
        padding_mask: True for padding, (B, n). Padding counts as 0: padding before a sentence has no effect, and the
            averages at padding after a sentence must not be used.

    Returns:
        Averages in the shape and dtype of ``x``.

    Raises:
        ValueError: for β outside [0, 1).
    """
    if not 0 <= beta < 1:
        raise ValueError(f"beta must be at least 0 and less than 1, not {beta}")
    if padding_mask is not None:
        x = x.masked_fill(padding_mask.view(len(x), *[1] * (x.dim() - 3), -1, 1), 0)
    work = sum_dtype(x)
    columns = x.movedim(-2, 0)  # flatten is a view if positions are the outermost axis in memory
    with torch.autocast(x.device.type, enabled=False):
        sums = _decaying_sum(columns.flatten(1).to(work), beta, 1 - beta)
    return sums.to(x.dtype).view(columns.shape).movedim(0, -2)


def _decaying_sum(x: Tensor, decay: float, factor: float = 1.0) -> Tensor:
    """Compute ``factor · Σ_{j≤i} decay^{i-j} x_j`` along the first axis of a matrix."""
    length = len(x)
    block = min(BLOCK, length)
    if rest := -length % block:
        x = F.pad(x, (0, 0, 0, rest))
    blocks = x.unflatten(0, (-1, block))
    i = torch.arange(block, device=x.device)
    powers = factor * (decay ** (i.unsqueeze(1) - i).clamp(min=0).to(x.dtype)).tril()
    sums = powers.expand(len(blocks), -1, -1) @ blocks
    if len(blocks) > 1:
        # Contribution of the previous blocks: their last sums, decayed by whole blocks.
        previous = F.pad(_decaying_sum(sums[:-1, -1], decay**block), (0, 0, 1, 0))
        sums.addcmul_(decay ** (i + 1).to(x.dtype).unsqueeze(1), previous.unsqueeze(1))
    return sums.flatten(0, 1)[:length]
