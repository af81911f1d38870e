"""AMLP-Cov's covariances in PyTorch, for CPUs.

Works through blocks of positions. The only extra memory are the copies of one block, where there is padding, half
precision or memory that batched products cannot take: nothing grows with the length but inputs and gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from amlp_fairseq.ops.amlp_cov.shared import EPS, new_gradients, new_outputs, scaled, small_gradients

#: Positions of a block.
BLOCK = 256


def forward(
    x: Tensor, y: Tensor, temperature: Tensor | None, padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, covariance, x_norm, y_norm = outputs = new_outputs(x, y, normalize)
    for tensor in outputs[1:]:
        tensor.zero_()
    for _, x_block, y_block in _blocks(x, y, padding_mask):
        covariance += x_block.mT @ y_block
        if normalize:
            x_norm += x_block.square().sum(dim=2)
            y_norm += y_block.square().sum(dim=2)
    if normalize:
        x_norm.sqrt_()
        y_norm.sqrt_()
        covariance /= x_norm.clamp(min=EPS).unsqueeze(3) * y_norm.clamp(min=EPS).unsqueeze(2)
    outputs[0].copy_(scaled(covariance, temperature).softmax(dim=-1))
    return outputs


def backward(
    grad: Tensor, x: Tensor, y: Tensor, temperature: Tensor | None, padding_mask: Tensor | None,
    covariance: Tensor, x_norm: Tensor, y_norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    d_x, d_y, d_temperature = new_gradients(x, y, temperature)
    m, u, v, d_small = small_gradients(grad, covariance, x_norm, y_norm, temperature)
    if temperature is not None:
        d_temperature.copy_(d_small)
    for block, x_block, y_block in _blocks(x, y, padding_mask):
        d_x[:, :, block] = y_block @ m.mT - x_block * u.unsqueeze(2)
        d_y[:, :, block] = x_block @ m - y_block * v.unsqueeze(2)
    return d_x, d_y, d_temperature


def _blocks(x: Tensor, y: Tensor, padding_mask: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """A block's positions, and x and y there: float32 at least, 0 at padding."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    for first in range(0, x.size(2), BLOCK):
        block = slice(first, first + BLOCK)
        tensors = x[:, :, block], y[:, :, block]
        if padding_mask is not None:
            padding = padding_mask[:, None, block, None]
            tensors = tensors[0].masked_fill(padding, 0), tensors[1].masked_fill(padding, 0)
        yield block, tensors[0].to(dtype), tensors[1].to(dtype)
