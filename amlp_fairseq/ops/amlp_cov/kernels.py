"""Triton kernels of AMLP-Cov's covariances.

Forward: the positions are split over programs, which write partial sums; a second kernel adds these in a fixed order
(no atomics: the result is deterministic), normalises and takes the softmax. Backward: what has no axis n is left to
PyTorch (``shared.py``), then one kernel makes d_x and, with x and y exchanged, d_y.

Sizes: B batch, H heads, N positions, D and E channels of x and y; BN, BD, BE blocks of them. A row is a sentence's
head, b·H + h. Offsets are int64. Arithmetic is float32 from the load on: bfloat16 arithmetic is wrong in Triton's
interpreter.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from amlp_fairseq.ops.amlp_cov.shared import EPS, new_gradients, new_outputs, small_gradients
from amlp_fairseq.ops.launches import LAUNCHES, half_precision

#: Positions of a block. Blocks of x and y in float32 with 128 channels are 32 KiB, and a pipeline holds several.
BLOCK = 32
#: A program sums about SPLIT positions, more where that would make more than MAX_SPLITS programs: a partial sum of
#: 64 × 64 numbers is an eighth of the numbers that it sums.
SPLIT, MAX_SPLITS = 256, 64


@triton.jit
def _counted(mask_ptr, b, i, mask_b, mask_n, N, MASKED: tl.constexpr):
    """Which positions exist and are not padding."""
    inside = i < N
    if MASKED:
        inside = inside & (tl.load(mask_ptr + b * mask_b + i * mask_n, mask=inside, other=1) == 0)
    return inside


@triton.jit
def _load_tile(pointer, i, c, stride_n, stride_c, counted, size_c):
    """(positions i) × (channels c), float32, zero at padding and outside."""
    valid = counted[:, None] & (c < size_c)[None, :]
    return tl.load(pointer + i[:, None] * stride_n + c[None, :] * stride_c, mask=valid, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["N", "splits", "mask_b", "mask_n"])
def _partial_kernel(
    x_ptr, y_ptr, mask_ptr, partial_ptr, x_square_ptr, y_square_ptr,
    N, H, D, E, splits,
    x_b, x_h, x_n, x_c, y_b, y_h, y_n, y_c, mask_b, mask_n,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Every ``splits``-th block's share of G, partial (B·H, splits, D, E), and of the squared norms."""
    p = tl.program_id(0).to(tl.int64)
    row, split = p // splits, p % splits
    b, h = row // H, row % H
    d = tl.arange(0, BD).to(tl.int64)
    e = tl.arange(0, BE).to(tl.int64)
    total = tl.zeros((BD, BE), dtype=tl.float32)
    x_square = tl.zeros((BD,), dtype=tl.float32)
    y_square = tl.zeros((BE,), dtype=tl.float32)
    for block in range(split, tl.cdiv(N, BN), splits):
        i = block * BN + tl.arange(0, BN).to(tl.int64)
        counted = _counted(mask_ptr, b, i, mask_b, mask_n, N, MASKED)
        x = _load_tile(x_ptr + b * x_b + h * x_h, i, d, x_n, x_c, counted, D)
        y = _load_tile(y_ptr + b * y_b + h * y_h, i, e, y_n, y_c, counted, E)
        total += tl.dot(tl.trans(x), y, input_precision=PRECISION)
        if NORMALIZE:
            x_square += tl.sum(x * x, axis=0)
            y_square += tl.sum(y * y, axis=0)
    tl.store(partial_ptr + (p * D + d[:, None]) * E + e[None, :], total, mask=(d < D)[:, None] & (e < E)[None, :])
    if NORMALIZE:
        tl.store(x_square_ptr + p * D + d, x_square, mask=d < D)
        tl.store(y_square_ptr + p * E + e, y_square, mask=e < E)


@triton.jit(do_not_specialize=["splits"])
def _finish_kernel(
    partial_ptr, x_square_ptr, y_square_ptr, temperature_ptr, out_ptr, covariance_ptr, x_norm_ptr, y_norm_ptr,
    H, D, E, splits, temperature_h,
    EPS: tl.constexpr, NORMALIZE: tl.constexpr, SCALED: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """From the partial sums to BD rows of the result, and what the gradient needs."""
    p = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(D, BD)
    row = p // blocks
    d = p % blocks * BD + tl.arange(0, BD)
    e = tl.arange(0, BE).to(tl.int64)
    valid = (d < D)[:, None] & (e < E)[None, :]
    covariance = tl.zeros((BD, BE), dtype=tl.float32)
    x_square = tl.zeros((BD,), dtype=tl.float32)
    y_square = tl.zeros((BE,), dtype=tl.float32)
    for split in range(splits):
        part = row * splits + split
        covariance += tl.load(partial_ptr + (part * D + d[:, None]) * E + e[None, :], mask=valid, other=0.0)
        if NORMALIZE:
            x_square += tl.load(x_square_ptr + part * D + d, mask=d < D, other=0.0)
            y_square += tl.load(y_square_ptr + part * E + e, mask=e < E, other=0.0)
    if NORMALIZE:
        x_norm, y_norm = tl.sqrt(x_square), tl.sqrt(y_square)
        covariance /= tl.maximum(x_norm, EPS)[:, None] * tl.maximum(y_norm, EPS)[None, :]
        tl.store(x_norm_ptr + row * D + d, x_norm, mask=d < D)
        tl.store(y_norm_ptr + row * E + e, y_norm, mask=(e < E) & (p % blocks == 0))
    out = (row * D + d[:, None]) * E + e[None, :]
    tl.store(covariance_ptr + out, covariance, mask=valid)
    if SCALED:
        covariance *= tl.load(temperature_ptr + row % H * temperature_h).to(tl.float32)
    scores = tl.where((e < E)[None, :], covariance, float("-inf"))
    scores = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    tl.store(out_ptr + out, scores / tl.sum(scores, axis=1)[:, None], mask=valid)


@triton.jit(do_not_specialize=["N", "mask_b", "mask_n"])
def _gradient_kernel(
    x_ptr, y_ptr, mask_ptr, m_ptr, u_ptr, dx_ptr,
    N, H, D, E,
    x_b, x_h, x_n, x_c, y_b, y_h, y_n, y_c, dx_b, dx_h, dx_n, dx_c, mask_b, mask_n, m_d, m_e,
    MASKED: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d_x = y Mᵀ - x diag(u); zero at padding."""
    p = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(N, BN)
    row = p // blocks
    b, h = row // H, row % H
    i = p % blocks * BN + tl.arange(0, BN)
    d = tl.arange(0, BD).to(tl.int64)
    counted = _counted(mask_ptr, b, i, mask_b, mask_n, N, MASKED)
    x = _load_tile(x_ptr + b * x_b + h * x_h, i, d, x_n, x_c, counted, D)
    d_x = -x * tl.load(u_ptr + row * D + d, mask=d < D, other=0.0)[None, :]
    for e0 in range(0, E, BE):
        e = e0 + tl.arange(0, BE).to(tl.int64)
        y = _load_tile(y_ptr + b * y_b + h * y_h, i, e, y_n, y_c, counted, E)
        m = tl.load(
            m_ptr + row * D * E + e[:, None] * m_e + d[None, :] * m_d,
            mask=(e < E)[:, None] & (d < D)[None, :],
            other=0.0,
        )
        d_x += tl.dot(y, m, input_precision=PRECISION)
    tl.store(
        dx_ptr + b * dx_b + h * dx_h + i[:, None] * dx_n + d[None, :] * dx_c,
        d_x,
        mask=(i < N)[:, None] & (d < D)[None, :],
    )


def forward(
    x: Tensor, y: Tensor | None, temperature: Tensor | None, padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, covariance, x_norm, y_norm = outputs = new_outputs(x, y, normalize)
    if y is None:
        y, y_norm = x, x_norm
    batch, heads, length, d = x.shape
    rows, e = batch * heads, y.size(3)
    splits = min(triton.cdiv(length, SPLIT), MAX_SPLITS)
    partial, x_square, y_square = (
        torch.empty(rows, splits, size, dtype=torch.float32, device=x.device) for size in (d * e, d, e)
    )
    sizes = {"H": heads, "D": d, "E": e, "splits": splits}
    sums = {"partial_ptr": partial, "x_square_ptr": x_square, "y_square_ptr": y_square}
    options = _options(x, y)
    with _on(x):
        _partial_kernel[(rows * splits,)](
            x_ptr=x, y_ptr=y, **_mask(padding_mask), **sums, N=length, **sizes,
            **_strides("x", x), **_strides("y", y), NORMALIZE=normalize, **options,
            # 128 × 128 sums are 64 registers of each thread then; float32 inputs of so many channels take as many.
            num_warps=16 if x.dtype == torch.float32 and max(options["BD"], options["BE"]) > 64 else 8,
        )  # fmt: skip
        _finish_kernel[(rows * triton.cdiv(d, 16),)](
            **sums, temperature_ptr=temperature, out_ptr=out, covariance_ptr=covariance,
            x_norm_ptr=x_norm, y_norm_ptr=y_norm, **sizes,
            temperature_h=0 if temperature is None else temperature.stride(0),
            EPS=EPS, NORMALIZE=normalize, SCALED=temperature is not None, BD=16, BE=options["BE"],
        )  # fmt: skip
    return outputs


def backward(
    grad: Tensor, x: Tensor, y: Tensor | None, temperature: Tensor | None, padding_mask: Tensor | None,
    covariance: Tensor, x_norm: Tensor, y_norm: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    d_x, d_y, d_temperature = new_gradients(x, y, temperature)
    m, u, v, d_small = small_gradients(grad, covariance, x_norm, y_norm, temperature, own=y is None)
    if temperature is not None:
        d_temperature.copy_(d_small)
    m = m.contiguous()
    _gradient(x, x if y is None else y, padding_mask, m, u.contiguous(), d_x)
    if y is not None:
        _gradient(y, x, padding_mask, m.mT, v.contiguous(), d_y)
    return d_x, d_y, d_temperature


def _gradient(x: Tensor, y: Tensor, padding_mask: Tensor | None, m: Tensor, u: Tensor, d_x: Tensor) -> None:
    batch, heads, length, d = x.shape
    options, launch = _options(x, y), LAUNCHES["cross_covariance, gradient", x.element_size()]
    options["BE"] = min(options["BE"], launch.channels)
    with _on(x):
        _gradient_kernel[(triton.cdiv(length, BLOCK) * batch * heads,)](
            x_ptr=x, y_ptr=y, **_mask(padding_mask), m_ptr=m, u_ptr=u, dx_ptr=d_x,
            N=length, H=heads, D=d, E=y.size(3),
            **_strides("x", x), **_strides("y", y), **_strides("dx", d_x), m_d=m.stride(2), m_e=m.stride(3), **options,
            num_warps=launch.warps,
        )  # fmt: skip


def _options(x: Tensor, y: Tensor) -> dict[str, Any]:
    """The kernels' blocks. tl.dot needs blocks of 16 at least."""
    return {
        "BN": BLOCK,
        "BD": max(triton.next_power_of_2(x.size(3)), 16),
        "BE": max(triton.next_power_of_2(y.size(3)), 16),
        # float16 and bfloat16 values are exact in tf32. float32 by three products of tf32 ("tf32x3") would need more
        # registers than there are for 128 channels: ptxas spills for sm_80.
        "PRECISION": "ieee" if x.dtype == torch.float32 else half_precision(),
    }


def _mask(padding_mask: Tensor | None) -> dict[str, Any]:
    if padding_mask is None:
        return {"mask_ptr": None, "mask_b": 0, "mask_n": 0, "MASKED": False}
    mask_b, mask_n = padding_mask.stride()
    return {"mask_ptr": padding_mask.view(torch.uint8), "mask_b": mask_b, "mask_n": mask_n, "MASKED": True}


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    return {f"{name}_{axis}": stride for axis, stride in zip("bhnc", tensor.stride(), strict=True)}


def _on(x: Tensor) -> Any:
    return torch.cuda.device_of(x)
