"""Covariances of AMLP-Cov in PyTorch, for CPUs.

Computes one block of positions after another. The only temporary memory is a copy of one block, if there is padding,
half precision or a memory layout that batched products do not support.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from amlp_fairseq.ops.amlp_cov.shared import new_gradients, outer, scaled, small_gradients
from amlp_fairseq.ops.precision import sum_dtype

#: Number of positions in a block.
BLOCK = 256


def forward(
    x: Tensor, y: Tensor | None, temperature: Tensor | None, padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sums: list[Tensor] = []
    for _, x_block, y_block in _blocks(x, y, padding_mask):
        parts = [x_block.mT @ y_block]
        if normalize and y is not None:
            parts += (block.square().sum(dim=2) for block in (x_block, y_block))
        sums = [total.add_(part) for total, part in zip(sums, parts, strict=True)] if sums else parts
    covariance = sums[0]
    if not normalize:
        x_norm, y_norm = covariance.new_empty(0), covariance.new_empty(0)
    elif y is None:
        x_norm, y_norm = covariance.diagonal(dim1=2, dim2=3).sqrt(), covariance.new_empty(0)
        covariance /= outer(x_norm, x_norm)
    else:
        x_norm, y_norm = sums[1].sqrt_(), sums[2].sqrt_()
        covariance /= outer(x_norm, y_norm)
    return scaled(covariance, temperature).softmax(dim=-1), covariance, x_norm, y_norm


def backward(
    grad: Tensor, x: Tensor, y: Tensor | None, temperature: Tensor | None, padding_mask: Tensor | None,
    covariance: Tensor, x_norm: Tensor, y_norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    d_x, d_y, d_temperature = new_gradients(x, y, temperature)
    m, u, v, d_small = small_gradients(grad, covariance, x_norm, y_norm, temperature, y_is_x=y is None)
    if temperature is not None:
        d_temperature.copy_(d_small)
    for block, x_block, y_block in _blocks(x, y, padding_mask):
        d_x[:, :, block] = (y_block @ m.mT).addcmul_(x_block, u.unsqueeze(2), value=-1)
        if y is not None:
            d_y[:, :, block] = (x_block @ m).addcmul_(y_block, v.unsqueeze(2), value=-1)
    return d_x, d_y, d_temperature


def _blocks(x: Tensor, y: Tensor | None, padding_mask: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Positions of a block, and x and y at these positions in float32 or float64, 0 at padding."""
    dtype = sum_dtype(x)

    def part(tensor: Tensor, block: slice) -> Tensor:
        values = tensor[:, :, block]
        if padding_mask is not None:
            values = values.masked_fill(padding_mask[:, None, block, None], 0)
        return values.to(dtype)

    for first in range(0, x.size(2), BLOCK):
        block = slice(first, first + BLOCK)
        x_block = part(x, block)
        yield block, x_block, x_block if y is None else part(y, block)
