"""DropConnect by a hash: the mask is the same on every device and backend, and is never stored."""

from __future__ import annotations

import torch
from torch import Tensor


def keep_mask(
    seed: Tensor | None, shape: torch.Size | tuple[int, ...], dropout: float, device: torch.device, first: int = 0
) -> Tensor:
    """Mask of the weights that DropConnect keeps: True with probability 1 - dropout.

    A weight is kept if a 32-bit hash of (seed, its row (t·B + b)·H + h, its column j) is at least dropout·2³².

    Args:
        seed: (1,) int64; None, only with dropout 0, keeps all weights.
        shape: shape (T, B, H, k) of the weights.
        first: position t of the first weights.
    """
    if seed is None:
        return torch.ones((), dtype=torch.bool, device=device).expand(shape)
    per_position = shape[1] * shape[2]
    rows = torch.arange(first * per_position, (first + shape[0]) * per_position, device=device)
    keys = _mix(_mix((seed.to(device) & 0xFFFFFFFF) ^ (rows >> 32)) ^ (rows & 0xFFFFFFFF))
    columns = torch.arange(shape[3], device=device) * 0x9E3779B9
    return (_mix((keys.unsqueeze(1) + columns) & 0xFFFFFFFF) >= drop_threshold(dropout)).view(shape)


def drop_threshold(dropout: float) -> int:
    """Smallest hash of a weight that is kept."""
    return min(round(dropout * 2**32), 2**32 - 1)


def _mix(x: Tensor) -> Tensor:
    """Bijection of 32-bit integers with good avalanche (C. Wellons' "lowbias32"), in int64."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)
