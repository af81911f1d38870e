"""Functions shared by the implementations: computations without the axis n."""

from __future__ import annotations

import torch
from torch import Tensor

from amlp_fairseq.ops.precision import sum_dtype

#: Minimum norm in divisions, as in torch.nn.functional.normalize.
EPS = 1e-12


def new_outputs(x: Tensor, y: Tensor | None, normalize: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uninitialised result (B, H, d, e), and tensors that the gradient needs: Ĝ (B, H, d, e), norms of the channels of
    x (B, H, d) and of y (B, H, e). The norms are empty without ``normalize``, the norms of y also if y is None."""
    batch, heads, _, d = x.shape
    e = d if y is None else y.size(3)
    dtype = sum_dtype(x)
    return (
        x.new_empty(batch, heads, d, e, dtype=dtype),
        x.new_empty(batch, heads, d, e, dtype=dtype),
        x.new_empty((batch, heads, d) if normalize else (0,), dtype=dtype),
        x.new_empty((batch, heads, e) if normalize and y is not None else (0,), dtype=dtype),
    )


def new_gradients(x: Tensor, y: Tensor | None, temperature: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised gradients of x, y and temperature; empty for arguments that are None."""
    d_y, d_temperature = (x.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in (y, temperature))
    return torch.empty_like(x), d_y, d_temperature


def scaled(covariance: Tensor, temperature: Tensor | None) -> Tensor:
    """Covariance Ĝ times temperature τ."""
    return covariance if temperature is None else temperature.to(covariance.dtype)[:, None, None] * covariance


def outer(x_norm: Tensor, y_norm: Tensor) -> Tensor:
    """Products (B, H, d, e) of the clamped norms, by which the covariance is divided."""
    return x_norm.clamp(min=EPS).unsqueeze(3) * y_norm.clamp(min=EPS).unsqueeze(2)


def small_gradients(
    grad: Tensor, covariance: Tensor, x_norm: Tensor, y_norm: Tensor, temperature: Tensor | None, y_is_x: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute M (B, H, d, e), u (B, H, d) and v (B, H, e) from the gradient (B, H, d, e) of the result, with

        d_x = y Mᵀ - x diag(u),    d_y = x M - y diag(v),

    and the temperature's gradient (H,). If y is x, the total gradient of x is x Mᵀ - x diag(u).
    """
    p = scaled(covariance, temperature).softmax(dim=-1)
    d_scores = p * (grad - (p * grad).sum(dim=-1, keepdim=True))
    d_temperature = (d_scores * covariance).sum((0, 2, 3), dtype=torch.float64).to(covariance)
    m = scaled(d_scores, temperature)
    if x_norm.numel() == 0:
        u, v = m.new_zeros(m.shape[:3]), m.new_zeros(*m.shape[:2], m.size(3))
    else:
        along = covariance * m
        y_norm = x_norm if y_is_x else y_norm
        u, v = _along_norm(along.sum(dim=3), x_norm), _along_norm(along.sum(dim=2), y_norm)
        m = m / outer(x_norm, y_norm)
    return (m + m.mT, u + v, v, d_temperature) if y_is_x else (m, u, v, d_temperature)


def _along_norm(along: Tensor, norm: Tensor) -> Tensor:
    """Gradient factor of a norm; 0 where the norm is clamped."""
    return torch.where(norm < EPS, 0.0, along / norm.square().clamp(min=EPS**2))
