"""Dynamic and lightweight convolution in PyTorch, for CPUs.

Computes one block of outputs after another. Within a block the convolution is a batched product with a band matrix,
P (n × W) @ X (W × R), as in ``kernels.py``. The only temporary memory is one block's matrices, and a float32 gradient
of x in half precision.

Sizes: n outputs of a block, W inputs in their windows, B batch, H heads, R = C/H channels of a head, k kernel width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from amlp_fairseq.ops.dynamic_conv.drop_connect import keep_mask
from amlp_fairseq.ops.dynamic_conv.shared import finish_light_gradient, new_logsumexp, new_output

#: Number of outputs in a block. The block's product has (BLOCK + k - 1) / k times the operations of the convolution.
BLOCK = 32


def forward(
    x: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    padding_l: int,
    length: int,
    step: int,
    softmax: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    out = new_output(x, length)
    weights = _Weights(x, weight, seed, softmax, dropout)
    inputs, outputs = _by_head(x, weight), _by_head(out, weight)
    for block in _blocks(length, x.size(0), weight.size(-1), padding_l, step):
        band = weights.band(block, step)[..., block.columns]
        outputs[:, :, block.outputs] = band @ inputs[:, :, block.inputs].to(band.dtype)
    return out, new_logsumexp(weight, softmax, "torch")


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, unused: Tensor, seed: Tensor | None,
    padding_l: int, step: int, softmax: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    weights = _Weights(x, weight, seed, softmax, dropout)
    d_x = torch.zeros_like(x, dtype=weights.dtype)
    d_weight = torch.empty_like(weight)
    d_shared = weight.new_zeros(weight.shape[-2:], dtype=weights.dtype)
    inputs, d_inputs, d_outputs = _by_head(x, weight), _by_head(d_x, weight), _by_head(grad, weight)
    for block in _blocks(grad.size(0), x.size(0), weight.size(-1), padding_l, step):
        d_output = d_outputs[:, :, block.outputs].to(weights.dtype)
        band = weights.band(block, step)
        d_inputs[:, :, block.inputs] += band[..., block.columns].mT @ d_output
        d_band = band.new_zeros(band.shape)
        d_band[..., block.columns] = d_output @ inputs[:, :, block.inputs].to(weights.dtype).mT
        if weight.dim() == 2:
            for _, diagonals in _diagonals(d_band, block.size, weight.size(-1), step):
                d_shared += diagonals.sum((0, 2))
        else:
            d_rows = d_shared.new_empty(block.size, *weight.shape[1:])
            for rows, diagonals in _diagonals(d_band, block.size, weight.size(-1), step):
                d_rows[rows] = diagonals.permute(2, 0, 1, 3)
            d_weight[block.outputs] = weights.finish_gradient(d_rows, block)
    if weight.dim() == 2:
        d_weight = finish_light_gradient(d_shared, weight, seed, softmax, dropout)
    return d_x.to(x.dtype), d_weight


class _Block(NamedTuple):
    """Block of outputs.

    Attributes:
        outputs: positions of the outputs.
        inputs: positions of the W inputs, without positions outside the sequence.
        columns: columns of these inputs in the band matrix.
        width: W.
    """

    outputs: slice
    inputs: slice
    columns: slice
    width: int

    @property
    def size(self) -> int:
        """Number n of outputs."""
        return self.outputs.stop - self.outputs.start


def _blocks(length: int, inputs: int, kernel: int, padding_l: int, step: int) -> Iterator[_Block]:
    """Blocks of whole steps that cover ``length`` outputs."""
    size = max(BLOCK // step, 1) * step
    for first in range(0, length, size):
        last = min(first + size, length)
        start = first - padding_l
        width = (last - 1) // step * step - first + kernel
        visible = slice(min(max(start, 0), inputs), min(max(start + width, 0), inputs))
        yield _Block(slice(first, last), visible, slice(visible.start - start, visible.stop - start), width)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """View (B, H, T, R) of x (T, B, C)."""
    return x.unflatten(2, (weight.size(-2), -1)).permute(1, 2, 0, 3)


def _diagonals(band: Tensor, size: int, kernel: int, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Weights in a band matrix (B, H, n, W).

    Yields, for each position within a step, the rows (outputs) with this position, and a view (B, H, rows, k) of their
    weights.
    """
    width = band.size(-1)
    for position in range(min(step, size)):
        shape = (*band.shape[:2], len(range(position, size, step)), kernel)
        strides = (*band.stride()[:2], step * width + step, 1)
        yield slice(position, None, step), band.as_strided(shape, strides, band.storage_offset() + position * width)


class _Weights:
    """Normalised weights of one block after another."""

    def __init__(self, x: Tensor, weight: Tensor, seed: Tensor | None, softmax: bool, dropout: float) -> None:
        self.dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
        self.batch, self.kernel = x.size(1), weight.size(-1)
        self.weight, self.seed, self.softmax, self.dropout = weight, seed, softmax, dropout
        self.shared: Tensor | None = None
        if weight.dim() == 2:
            p = weight.to(self.dtype)
            p = p.softmax(dim=-1) if softmax else p
            if seed is not None:
                p = p * keep_mask(seed, (1, 1, *p.shape), dropout, p.device)[0, 0] / (1 - dropout)
            self.shared = p
        self.buffer = torch.empty(0)

    def band(self, block: _Block, step: int) -> Tensor:
        """Band matrix (B, H, n, W) of a block; overwritten by the next call."""
        if block.size <= step:  # all outputs share one window, as in decoding: the weights are the matrix
            p = self._final_rows(block) if self.shared is None else self.shared.expand(block.size, self.batch, -1, -1)
            return p.permute(1, 2, 0, 3)
        shape = (self.batch, self.weight.size(-2), block.size, block.width)
        reused = self.buffer.shape == shape  # zeros outside the band, and shared weights, are already there
        if not reused:
            self.buffer = self.weight.new_zeros(shape, dtype=self.dtype)
        if self.shared is None:
            p = self._final_rows(block)
            for rows, diagonals in _diagonals(self.buffer, block.size, self.kernel, step):
                diagonals.copy_(p[rows].permute(1, 2, 0, 3))
        elif not reused:
            for _, diagonals in _diagonals(self.buffer, block.size, self.kernel, step):
                diagonals.copy_(self.shared.unsqueeze(1))
        return self.buffer

    def finish_gradient(self, d_rows: Tensor, block: _Block) -> Tensor:
        """Backpropagate the gradient (n, B, H, k) of the dynamic weights through DropConnect and softmax, in place."""
        if self.seed is not None:
            d_rows *= self._keep(block)
        if self.softmax:
            p = self._rows(block)
            d_rows -= torch.linalg.vecdot(p, d_rows).unsqueeze(-1)
            d_rows *= p
        return d_rows

    def _final_rows(self, block: _Block) -> Tensor:
        """Dynamic weights (n, B, H, k) after softmax and DropConnect."""
        p = self._rows(block)
        return p if self.seed is None else p * self._keep(block)

    def _rows(self, block: _Block) -> Tensor:
        """Dynamic weights (n, B, H, k) after the softmax."""
        w = self.weight[block.outputs].to(self.dtype)
        return w.softmax(dim=-1) if self.softmax else w

    def _keep(self, block: _Block) -> Tensor:
        """Factors of DropConnect (n, B, H, k): 0, or 1 / (1 - dropout)."""
        shape = self.weight[block.outputs].shape
        keep = keep_mask(self.seed, shape, self.dropout, self.weight.device, block.outputs.start)
        return keep.to(self.dtype) / (1 - self.dropout)
