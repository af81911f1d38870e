"""Covariances of AMLP-Cov as defined in the paper (Eq. 9 and 10), with the stabilisers of XCiT (Ali et al. 2021).
Plain PyTorch, differentiable, any floating type: the reference for the other implementations.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize as unit_norm


def cross_covariance_naive(
    x: Tensor,
    y: Tensor,
    temperature: Tensor | None = None,
    padding_mask: Tensor | None = None,
    *,
    normalize: bool = True,
) -> Tensor:
    """Covariance σ₂(XᵀY) of every head: softmax over e of τ · Σ_i X̂[i, d] Ŷ[i, e].

    X̂ and Ŷ are X and Y with every channel divided by its L2 norm over the positions (at least 1e-12).

    Args:
        x: (B, H, n, d).
        y: (B, H, n, e).
        temperature: factor τ of every head, (H,).
        padding_mask: True at positions to ignore, (B, n).
        normalize: normalise the channels.

    Returns:
        (B, H, d, e).
    """
    if padding_mask is not None:
        padding = padding_mask[:, None, :, None]
        x, y = x.masked_fill(padding, 0), y.masked_fill(padding, 0)
    if normalize:
        x, y = unit_norm(x, dim=2), unit_norm(y, dim=2)
    scores = torch.einsum("bhnd,bhne->bhde", x, y)
    if temperature is not None:
        scores = temperature[:, None, None] * scores
    return scores.softmax(dim=-1)
