"""The largest entries of rows as long as a dictionary."""

from __future__ import annotations

import torch
from torch import Tensor

#: Entries that are first looked at as one.
BLOCK = 32


def top_k(table: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest entries of every row (…, V), largest first, and where they are, (…, k): ``topk``, and faster.

    They are in the k blocks with the largest maxima.
    """
    blocks = table.size(-1) // BLOCK
    if k >= blocks:
        return table.topk(k, dim=-1)
    whole = table[..., : blocks * BLOCK]
    best = whole.unflatten(-1, (blocks, BLOCK)).amax(dim=-1).topk(k, dim=-1).indices
    where = (best.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=table.device)).flatten(-2)
    tail = torch.arange(blocks * BLOCK, table.size(-1), device=table.device).expand(*table.shape[:-1], -1)
    where = torch.cat([where, tail], dim=-1)
    values, found = table.gather(-1, where).topk(k, dim=-1)
    return values, where.gather(-1, found)
