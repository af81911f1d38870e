"""Functions shared by the implementations."""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.ops.dynamic_conv.drop_connect import keep_mask


def new_output(x: Tensor, length: int) -> Tensor:
    """Uninitialised output (T, B, C), with the axes in memory in the same order as in x."""
    if x.stride(0) < x.stride(1):  # (B, T, C) in memory
        return x.new_empty(x.size(1), length, x.size(2)).transpose(0, 1)
    return x.new_empty(length, x.size(1), x.size(2))


def new_logsumexp(weight: Tensor, softmax: bool, backend: str) -> Tensor:
    """Uninitialised (B, H, T) float32 for dynamic weights (T, B, H, k) under softmax in kernels; empty otherwise."""
    positions_last = weight.permute(1, 2, 0, 3).shape[:3] if weight.dim() == 4 else (0,)
    return weight.new_empty(positions_last if softmax and backend == "triton" else (0,), dtype=torch.float32)


def finish_light_gradient(
    d_weight: Tensor, weight: Tensor, seed: Tensor | None, softmax: bool, dropout: float
) -> Tensor:
    """Gradient (H, k) of LightConv's parameters from the gradient of the weights after softmax and DropConnect."""
    if seed is not None:
        d_weight = d_weight * keep_mask(seed, (1, 1, *weight.shape), dropout, weight.device)[0, 0] / (1 - dropout)
    if softmax:
        p = weight.to(d_weight.dtype).softmax(dim=-1)
        d_weight = p * (d_weight - (p * d_weight).sum(dim=-1, keepdim=True))
    return torch.empty_like(weight).copy_(d_weight)
