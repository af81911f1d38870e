"""Triton kernels of AMLP-Cov's covariances.

Forward: the positions are split over programs, which write partial sums; a second kernel adds the partial sums in a
fixed order (no atomics: the result is deterministic), normalises and applies the softmax. Backward: PyTorch computes
the terms without axis n (``shared.py``), then one kernel computes d_x and d_y.

Sizes: B batch, H heads, N positions, D and E channels of x and y; BN, BD, BE are block sizes. A row is a sentence's
head, b·H + h. Offsets are int64. Arithmetic is float32, except that operands of the covariances' products have x's
type.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from amlp_fairseq.ops.amlp_cov.shared import EPS, new_gradients, new_outputs, small_gradients
from amlp_fairseq.ops.launches import FACTORS, LAUNCHES, precision

#: Minimum number of programs, if there are enough positions; maximum number of programs per head, whose partial sums
#: are added sequentially.
PROGRAMS, MAX_SPLITS = 512, 64


@triton.jit
def _offset(n, stride):
    return n.to(tl.int64) * stride


@triton.jit
def _tile(pointer, b, h, i, c, stride_b, stride_h, stride_n, stride_c, BN: tl.constexpr):
    """Pointers (BN, channels c) to positions i, i + 1, …."""
    rows = pointer + _offset(b, stride_b) + _offset(h, stride_h) + _offset(i, stride_n)
    rows += _offset(tl.arange(0, BN), stride_n)
    return rows[:, None] + _offset(c, stride_c)[None, :]


@triton.jit
def _counted(mask_ptr, b, i, mask_b, mask_n, N, BN: tl.constexpr, MASKED: tl.constexpr):
    """Mask (BN,) of the positions i, i + 1, … that exist and are not padding."""
    n = tl.arange(0, BN)
    inside = n < N - i
    if MASKED:
        mask = mask_ptr + _offset(b, mask_b) + _offset(i, mask_n) + _offset(n, mask_n)
        inside = inside & (tl.load(mask, mask=inside, other=1) == 0)
    return inside


@triton.jit(do_not_specialize=["N", "mask_b", "mask_n"])
def _partial_kernel(
    x_ptr, y_ptr, mask_ptr, partial_ptr, x_square_ptr, y_square_ptr,
    N, H, D, E,
    x_b, x_h, x_n, x_c, y_b, y_h, y_n, y_c, mask_b, mask_n,
    NORMALIZE: tl.constexpr, MASKED: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, FACTOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum every ``splits``-th block of G into partial (B·H, splits, D, E), and of the squared norms."""
    h, b, split, splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    d, e = tl.arange(0, BD), tl.arange(0, BE)
    total = tl.zeros((BD, BE), dtype=tl.float32)
    x_squares = tl.zeros((BN, BD), dtype=tl.float32)
    y_squares = tl.zeros((BN, BE), dtype=tl.float32)
    for n in range(0, tl.cdiv(N, splits * BN)):
        i = (n * splits + split) * BN
        counted = _counted(mask_ptr, b, i, mask_b, mask_n, N, BN, MASKED)[:, None]
        x = tl.load(_tile(x_ptr, b, h, i, d, x_b, x_h, x_n, x_c, BN), mask=counted & (d < D)[None, :], other=0.0)
        y = tl.load(_tile(y_ptr, b, h, i, e, y_b, y_h, y_n, y_c, BN), mask=counted & (e < E)[None, :], other=0.0)
        total += tl.dot(tl.trans(x.to(FACTOR)), y.to(FACTOR), input_precision=PRECISION)
        if NORMALIZE:
            x_squares += x.to(tl.float32) * x.to(tl.float32)
            y_squares += y.to(tl.float32) * y.to(tl.float32)
    p = (_offset(b, H) + h) * splits + split
    partial = partial_ptr + _offset(p * D + d, E)[:, None] + e[None, :].to(tl.int64)
    tl.store(partial, total, mask=(d < D)[:, None] & (e < E)[None, :])
    if NORMALIZE:
        tl.store(x_square_ptr + (p * D + d), tl.sum(x_squares, axis=0), mask=d < D)
        tl.store(y_square_ptr + (p * E + e), tl.sum(y_squares, axis=0), mask=e < E)


@triton.jit(do_not_specialize=["splits"])
def _finish_kernel(
    partial_ptr, x_square_ptr, y_square_ptr, temperature_ptr, out_ptr, covariance_ptr, x_norm_ptr, y_norm_ptr,
    H, D, E, splits, temperature_h,
    EPS: tl.constexpr, NORMALIZE: tl.constexpr, SCALED: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Compute BD rows of the result, and the values that the gradient needs, from the partial sums."""
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


@triton.jit
def _load_m(m_ptr, row, e0, D, E, BD: tl.constexpr, BE: tl.constexpr):
    """M of a row at channels e0, e0 + 1, … of y, (BD, BE) float32."""
    d, e = tl.arange(0, BD), e0 + tl.arange(0, BE)
    pointers = (m_ptr + (row * D + d) * E)[:, None] + e[None, :].to(tl.int64)
    return tl.load(pointers, mask=(d < D)[:, None] & (e < E)[None, :], other=0.0)


@triton.jit(do_not_specialize=["N", "mask_b", "mask_n"])
def _gradient_kernel(
    x_ptr, y_ptr, mask_ptr, m_ptr, u_ptr, v_ptr, dx_ptr, dy_ptr,
    N, H, D, E,
    x_b, x_h, x_n, x_c, y_b, y_h, y_n, y_c, dx_b, dx_h, dx_n, dx_c, dy_b, dy_h, dy_n, dy_c, mask_b, mask_n,
    Y_IS_X: tl.constexpr, MASKED: tl.constexpr,
    BN: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, E_BLOCKS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute d_x = y Mᵀ - x diag(u), and unless y is x d_y = x M - y diag(v); zero at padding."""
    h, b, split, splits = tl.program_id(0), tl.program_id(1), tl.program_id(2), tl.num_programs(2)
    d, row = tl.arange(0, BD), _offset(b, H) + h
    m = _load_m(m_ptr, row, 0, D, E, BD, BE)
    u = tl.load(u_ptr + (row * D + d), mask=d < D, other=0.0)[None, :]
    for n in range(0, tl.cdiv(N, splits * BN)):
        i = (n * splits + split) * BN
        inside = (tl.arange(0, BN) < N - i)[:, None]
        counted = _counted(mask_ptr, b, i, mask_b, mask_n, N, BN, MASKED)[:, None]
        x = tl.load(_tile(x_ptr, b, h, i, d, x_b, x_h, x_n, x_c, BN), mask=counted & (d < D)[None, :], other=0.0)
        x = x.to(tl.float32)
        d_x = -x * u
        for e0 in range(0, E_BLOCKS * BE, BE):
            e = e0 + tl.arange(0, BE)
            if E_BLOCKS > 1:
                m = _load_m(m_ptr, row, e0, D, E, BD, BE)
            y = tl.load(_tile(y_ptr, b, h, i, e, y_b, y_h, y_n, y_c, BN), mask=counted & (e < E)[None, :], other=0.0)
            y = y.to(tl.float32)
            d_x += tl.dot(y, tl.trans(m), input_precision=PRECISION)
            if not Y_IS_X:
                v = tl.load(v_ptr + (row * E + e), mask=e < E, other=0.0)[None, :]
                d_y = tl.dot(x, m, input_precision=PRECISION) - y * v
                tl.store(_tile(dy_ptr, b, h, i, e, dy_b, dy_h, dy_n, dy_c, BN), d_y, mask=inside & (e < E)[None, :])
        tl.store(_tile(dx_ptr, b, h, i, d, dx_b, dx_h, dx_n, dx_c, BN), d_x, mask=inside & (d < D)[None, :])


def forward(
    x: Tensor, y: Tensor | None, temperature: Tensor | None, padding_mask: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out, covariance, x_norm, y_norm = outputs = new_outputs(x, y, normalize)
    if y is None:
        y, y_norm = x, x_norm
    batch, heads, length, d = x.shape
    rows, e = batch * heads, y.size(3)
    options = _options("cross_covariance", x, y)
    splits = _splits(rows, length, options)
    partial, x_square, y_square = (
        torch.empty(rows, splits, size, dtype=torch.float32, device=x.device) for size in (d * e, d, e)
    )
    sizes = {"H": heads, "D": d, "E": e, "splits": splits}
    sums = {"partial_ptr": partial, "x_square_ptr": x_square, "y_square_ptr": y_square}
    with _on(x):
        _partial_kernel[(heads, batch, splits)](
            x_ptr=x, y_ptr=y, **_mask(padding_mask), **sums, N=length, H=heads, D=d, E=e,
            **_strides("x", x), **_strides("y", y), NORMALIZE=normalize, FACTOR=FACTORS[x.dtype], **options,
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
    m, u, v, d_small = small_gradients(grad, covariance, x_norm, y_norm, temperature, y_is_x=y is None)
    if temperature is not None:
        d_temperature.copy_(d_small)
    second, d_second = (x, d_x) if y is None else (y, d_y)
    batch, heads, length, d = x.shape
    options = _options("cross_covariance, gradient", x, second)
    with _on(x):
        _gradient_kernel[(heads, batch, _splits(batch * heads, length, options))](
            x_ptr=x, y_ptr=second, **_mask(padding_mask), m_ptr=m.contiguous(), u_ptr=u.contiguous(),
            v_ptr=v.contiguous(), dx_ptr=d_x, dy_ptr=d_second,
            N=length, H=heads, D=d, E=second.size(3), **_strides("x", x), **_strides("y", second),
            **_strides("dx", d_x), **_strides("dy", d_second), Y_IS_X=y is None,
            E_BLOCKS=triton.cdiv(second.size(3), options["BE"]), **options,
        )  # fmt: skip
    return d_x, d_y, d_temperature


def _options(kernel: str, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Block sizes and warps of a kernel. ``tl.dot`` needs blocks of at least 16."""
    # Three products of tf32 for float32 need too many registers with 128 channels.
    wide = x.dtype == torch.float32 and max(x.size(3), y.size(3)) > 64
    launch = LAUNCHES[kernel + ", wide" * wide, x.element_size()]
    return {
        "BN": launch.positions,
        "BD": max(triton.next_power_of_2(x.size(3)), 16),
        "BE": min(max(triton.next_power_of_2(y.size(3)), 16), launch.channels),
        "PRECISION": "ieee" if wide else precision(x.dtype),
        "num_warps": launch.warps,
    }


def _splits(rows: int, length: int, options: dict[str, Any]) -> int:
    """Number of programs that share the positions of a row."""
    return min(triton.cdiv(length, options["BN"]), triton.cdiv(PROGRAMS, max(rows, 1)), MAX_SPLITS)


def _mask(padding_mask: Tensor | None) -> dict[str, Any]:
    if padding_mask is None:
        return {"mask_ptr": None, "mask_b": 0, "mask_n": 0, "MASKED": False}
    mask_b, mask_n = padding_mask.stride()
    return {"mask_ptr": padding_mask.view(torch.uint8), "mask_b": mask_b, "mask_n": mask_n, "MASKED": True}


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    return {f"{name}_{axis}": stride for axis, stride in zip("bhnc", tensor.stride(), strict=True)}


def _on(x: Tensor) -> Any:
    return torch.cuda.device_of(x)
