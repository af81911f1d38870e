"""LightConv and DynamicConv as defined in the paper: Wu et al. 2019, "Pay Less Attention with Lightweight and Dynamic
Convolutions". Plain PyTorch, differentiable, any floating type: the reference for the other implementations.

Symbols: T outputs, S inputs, B batch, C channels, H heads (head h has channels h·C/H … (h+1)·C/H - 1), k kernel width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.ops.dynamic_conv.drop_connect import keep_mask


def dynamic_conv_naive(
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    *,
    step: int = 1,
    softmax: bool = True,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """DynamicConv (Section 4): output i, channel c of head h is

        O[i, c] = Σ_j W[i, h, j] · X[step·⌊i/step⌋ + j - padding_l, c],   j = 0 … k-1,

    with X = 0 outside 0 … S-1, W the weights after softmax over j and DropConnect. ``step`` = 1 is the paper's
    convolution; with ``step`` = z the z outputs of a step share one window of inputs.

    Args:
        x: inputs, (S, B, C).
        weight: weights before the softmax, (T, B, H, k).
        padding_l: number of inputs to the left of a window's first output: k-1 is causal, (k-1)//2 centred.
        step: number of positions that share a window.
        softmax: normalise the weights over the kernel axis (Section 3).
        dropout: probability of dropping a normalised weight (DropConnect, Section 3).
        seed: (1,) int64, seed of DropConnect; see ``keep_mask``.

    Returns:
        (T, B, C).
    """
    length, batch, heads, width = weight.shape
    weight = _normalized(weight, softmax, keep_mask(seed, weight.shape, dropout, weight.device), dropout)
    windows = step * (torch.arange(length, device=x.device) // step) - padding_l
    positions = windows.unsqueeze(1) + torch.arange(width, device=x.device)  # T x k
    inside = (positions >= 0) & (positions < x.size(0))
    x = x.view(x.size(0), batch, heads, -1)[positions.clamp(0, x.size(0) - 1)]  # T x k x B x H x C/H
    x = x.where(inside.view(length, width, 1, 1, 1), torch.zeros((), dtype=x.dtype, device=x.device))
    return torch.einsum("tbhk,tkbhr->tbhr", weight, x).flatten(2)


def light_conv_naive(
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    *,
    length: int | None = None,
    step: int = 1,
    softmax: bool = True,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> Tensor:
    """LightConv (Section 3): as ``dynamic_conv_naive`` with one ``weight`` (H, k) for all positions and sentences.

    ``length`` is the number T of outputs, by default the number S of inputs. A weight that DropConnect drops is dropped
    at all positions.
    """
    weight = _normalized(weight, softmax, keep_mask(seed, (1, 1, *weight.shape), dropout, x.device)[0, 0], dropout)
    length = x.size(0) if length is None else length
    weight = weight.expand(length, x.size(1), *weight.shape)
    return dynamic_conv_naive(x, weight, padding_l, step=step, softmax=False)


def _normalized(weight: Tensor, softmax: bool, keep: Tensor, dropout: float) -> Tensor:
    """Weights after softmax and DropConnect."""
    if softmax:
        weight = weight.softmax(dim=-1)
    return weight * keep / (1 - dropout)
