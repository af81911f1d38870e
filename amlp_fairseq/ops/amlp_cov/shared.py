"""What the implementations have in common: all that has no axis n."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-12  # the least norm that divides, as in torch.nn.functional.normalize


def new_outputs(x: Tensor, y: Tensor | None, normalize: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uninitialised result (B, H, d, e), and what the gradient needs: Ĝ (B, H, d, e) and the norms of the channels of
    x (B, H, d) and of y (B, H, e), which are empty unless ``normalize``, and y's where y is None."""
    batch, heads, _, d = x.shape
    e = d if y is None else y.size(3)
    dtype = torch.promote_types(x.dtype, torch.float32)
    return (
        x.new_empty(batch, heads, d, e, dtype=dtype),
        x.new_empty(batch, heads, d, e, dtype=dtype),
        x.new_empty((batch, heads, d) if normalize else (0,), dtype=dtype),
        x.new_empty((batch, heads, e) if normalize and y is not None else (0,), dtype=dtype),
    )


def new_gradients(x: Tensor, y: Tensor | None, temperature: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised; that of what is None is empty."""
    d_y, d_temperature = (x.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in (y, temperature))
    return torch.empty_like(x), d_y, d_temperature


def scaled(covariance: Tensor, temperature: Tensor | None) -> Tensor:
    """τ Ĝ."""
    return covariance if temperature is None else temperature.to(covariance.dtype)[:, None, None] * covariance


def outer(x_norm: Tensor, y_norm: Tensor) -> Tensor:
    """What divides the covariance."""
    return x_norm.clamp(min=EPS).unsqueeze(3) * y_norm.clamp(min=EPS).unsqueeze(2)


def small_gradients(
    grad: Tensor, covariance: Tensor, x_norm: Tensor, y_norm: Tensor, temperature: Tensor | None, own: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the gradient (B, H, d, e) of the result to M (B, H, d, e), u (B, H, d) and v (B, H, e) with

        d_x = y Mᵀ - x diag(u),    d_y = x M - y diag(v),

    and the temperature's gradient (H,). If y is x, its whole gradient is x Mᵀ - x diag(u).
    """
    p = scaled(covariance, temperature).softmax(dim=-1)
    d_scores = p * (grad - (p * grad).sum(dim=-1, keepdim=True))
    d_temperature = (d_scores * covariance).sum((0, 2, 3), dtype=torch.float64).to(covariance)
    m = scaled(d_scores, temperature)
    if x_norm.numel() == 0:
        u, v = m.new_zeros(m.shape[:3]), m.new_zeros(*m.shape[:2], m.size(3))
    else:
        along = covariance * m
        y_norm = x_norm if own else y_norm
        u, v = _along_norm(along.sum(dim=3), x_norm), _along_norm(along.sum(dim=2), y_norm)
        m = m / outer(x_norm, y_norm)
    return (m + m.mT, u + v, v, d_temperature) if own else (m, u, v, d_temperature)


def _along_norm(along: Tensor, norm: Tensor) -> Tensor:
    """A norm that is clamped has no gradient."""
    return torch.where(norm < EPS, 0.0, along / norm.square().clamp(min=EPS**2))
