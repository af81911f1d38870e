"""First-order linear recurrence with a factor for every position, by a parallel scan."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def linear_recurrence(decay: Tensor, x: Tensor, initial: Tensor) -> Tensor:
    """Compute ``h_t = decay_t ⊙ h_{t-1} + x_t`` with ``h_0 = initial``, along the first axis.

    The scan takes ⌈log₂ T⌉ passes over all positions (Hillis and Steele 1986) and divides by nothing, so that decays
    between 0 and 1 cannot overflow. Memory is linear in T: the gradient is the same recurrence backwards.
    Differentiable any number of times.

    Args:
        decay: factors, (T, …).
        x: (T, …).
        initial: (…).

    Returns:
        h_1 … h_T, (T, …), in the dtype of ``x``, which the other arguments have as well.
    """
    result: Tensor = _LinearRecurrence.apply(decay, x, initial)
    return result


class _LinearRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, decay: Tensor, x: Tensor, initial: Tensor) -> Tensor:
        h = _scan(decay, x, initial)
        ctx.save_for_backward(decay, initial, h)
        return h

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, initial, h = ctx.saved_tensors
        # d_t = grad_t + decay_{t+1} ⊙ d_{t+1} is the gradient at h_t with what it contributes to all later positions.
        later = torch.cat([torch.zeros_like(decay[:1]), decay[1:].flip(0)])
        d = linear_recurrence(later, grads[0].flip(0), torch.zeros_like(initial)).flip(0)
        return d * torch.cat([initial.unsqueeze(0), h[:-1]]), d, d[0] * decay[0]


def _scan(decay: Tensor, x: Tensor, initial: Tensor) -> Tensor:
    """Each pass joins the span of positions that ends at t with the span that ends before it, of the same length."""
    h = torch.cat([torch.addcmul(x[:1], decay[:1], initial), x[1:]])
    span = 1
    while span < len(h):
        before = F.pad(h[:-span], (0, 0) * (h.dim() - 1) + (span, 0))
        h = torch.addcmul(h, decay, before)
        decay = torch.cat([decay[:span], decay[span:] * decay[:-span]])
        span *= 2
    return h
