"""Triton kernels of the dynamic and the lightweight convolution.

Within a block of outputs the convolution is a product with a band matrix: P (BT × BS) @ X (BS × BR), where row i of P
holds the k weights of output i, shifted to the inputs that they meet. The kernels load weights straight into that form
(each weight once), normalise its rows and use the tensor cores: softmax and DropConnect need no memory of their own.

Sizes: T outputs, S inputs, B batch, H heads, R = C/H channels of a head, K kernel width; BT, BS, BR blocks of them.
Offsets of rows and columns are int64; what a program computes for every element of a block is int32, for registers.
Arithmetic is float32 from the load on: bfloat16 arithmetic is wrong in Triton's interpreter.

What changes from batch to batch or from layer to layer is not specialised: no batch size compiles anything anew. The
strides of x, of the output and of their gradients are: that they are multiples of 16 makes loads of 16 bytes.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from amlp_fairseq.ops.dynamic_conv.drop_connect import drop_threshold
from amlp_fairseq.ops.dynamic_conv.shared import finish_light_gradient, new_logsumexp, new_output
from amlp_fairseq.ops.launches import LAUNCHES, full_precision, half_precision

#: Arguments whose value, or divisibility by 16, depends on the batch or the layer, and that no load is faster for.
VARYING = ["T", "S", "B", "K", "padding_l", "threshold", "splits", "w_t", "w_b", "dw_t", "dw_b"]


@triton.jit
def _mix(x):
    """The hash of naive.py."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _keep(seed, rows, j, threshold):
    """Whether DropConnect keeps the weights ``j`` of ``rows`` = (t·B + b)·H + h."""
    keys = _mix(_mix(seed ^ (rows >> 32).to(tl.uint32)) ^ rows.to(tl.uint32))
    return _mix(keys + j.to(tl.uint32) * 0x9E3779B9) >= threshold.to(tl.uint32)


@triton.jit
def _block(T, B, H, R, BT: tl.constexpr, BR: tl.constexpr):
    """This program's first position, sentence, head and channels."""
    p = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(T, BT)
    t, p = p % blocks * BT, p // blocks
    r_blocks = tl.cdiv(R, BR)
    r, p = p % r_blocks * BR, p // r_blocks
    return t, p // H, p % H, r + tl.arange(0, BR)


@triton.jit
def _windows(t0, SIZE: tl.constexpr, STEP: tl.constexpr):
    """Where the windows of the outputs t0, t0 + 1, … begin, counted from the step that t0 is in, (SIZE,) int32."""
    return ((t0 % STEP).to(tl.int32) + tl.arange(0, SIZE)) // STEP * STEP


@triton.jit
def _band_offsets(
    i, b, h, t0, w_t, w_b, w_h, w_k, STEP: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr
):  # fmt: skip
    """Where the weights of the outputs i are, in the form of a band matrix, (BT, BS): a sum of rows and columns."""
    rows = i * w_t + b * w_b + h * w_h - _windows(t0, BT, STEP).to(tl.int64) * w_k
    return rows[:, None] + (tl.arange(0, BS).to(tl.int64) * w_k)[None, :]


@triton.jit
def _rows(i, b, h, B, H, SHARED: tl.constexpr):
    """Index of a weight row: that of its head where all positions share it."""
    if SHARED:
        return i * 0 + h
    else:
        return (i * B + b) * H + h


@triton.jit
def _load_tile(pointer, t, b, c, stride_t, stride_b, stride_c, size_t, c_valid):
    """(positions t) × (channels c), float32, zero outside."""
    valid = ((t >= 0) & (t < size_t))[:, None] & c_valid[None, :]
    return tl.load(pointer + t[:, None] * stride_t + b * stride_b + c[None, :] * stride_c, mask=valid, other=0.0).to(
        tl.float32
    )


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    x_ptr, w_ptr, out_ptr, lse_ptr, seed_ptr,
    T, S, B, H, R, K, padding_l, threshold, scale,
    x_t, x_b, x_c, w_t, w_b, w_h, w_k, o_t, o_b, o_c,
    STEP: tl.constexpr, SOFTMAX: tl.constexpr, DROPOUT: tl.constexpr, SHARED: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    t0, b, h, r = _block(T, B, H, R, BT, BR)
    i = t0 + tl.arange(0, BT)
    s = t0 // STEP * STEP - padding_l + tl.arange(0, BS)
    j = tl.arange(0, BS)[None, :] - _windows(t0, BT, STEP)[:, None]
    band = (j >= 0) & (j < K) & (i < T)[:, None]
    w_offsets = _band_offsets(i, b, h, t0, w_t, w_b, w_h, w_k, STEP, BT, BS)
    p = tl.load(w_ptr + w_offsets, mask=band, other=float("-inf") if SOFTMAX else 0.0).to(tl.float32)
    if SOFTMAX:
        top = tl.where(i < T, tl.max(p, axis=1), 0.0)
        p = tl.exp(p - top[:, None])
        total = tl.where(i < T, tl.sum(p, axis=1), 1.0)
        p = p / total[:, None]
        if not SHARED:
            tl.store(lse_ptr + (i * B + b) * H + h, top + tl.log(total), mask=i < T)
    if DROPOUT:
        keep = _keep(tl.load(seed_ptr).to(tl.uint32), _rows(i, b, h, B, H, SHARED)[:, None], j, threshold)
        p = tl.where(keep, p * scale, 0.0)
    x = _load_tile(x_ptr, s, b, h * R + r, x_t, x_b, x_c, S, r < R)
    out = tl.dot(p, x, input_precision=PRECISION)
    tl.store(
        out_ptr + i[:, None] * o_t + b * o_b + (h * R + r)[None, :] * o_c, out, mask=(i < T)[:, None] & (r < R)[None, :]
    )


@triton.jit(do_not_specialize=VARYING)
def _backward_x_kernel(
    grad_ptr, w_ptr, lse_ptr, seed_ptr, dx_ptr,
    T, S, B, H, R, K, padding_l, threshold, scale,
    g_t, g_b, g_c, w_t, w_b, w_h, w_k, dx_t, dx_b, dx_c,
    STEP: tl.constexpr, SOFTMAX: tl.constexpr, DROPOUT: tl.constexpr, SHARED: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d_x = Pᵀ @ grad: here the rows are inputs s, the columns the outputs i whose windows hold them."""
    s0, b, h, r = _block(S, B, H, R, BT, BR)
    s = s0 + tl.arange(0, BT)
    i0 = s0 + padding_l - (K - 1)
    i = i0 + tl.arange(0, BS)
    last = K - 1 + (i0 % STEP).to(tl.int32) + tl.arange(0, BT)  # of each input the weight by which the first i sees it
    windows = _windows(i0, BS, STEP)
    j = last[:, None] - windows[None, :]
    i_valid = (i >= 0) & (i < T)
    band = (j >= 0) & (j < K) & i_valid[None, :] & (s < S)[:, None]
    columns = i * w_t + b * w_b + h * w_h - windows.to(tl.int64) * w_k
    w_offsets = (last.to(tl.int64) * w_k)[:, None] + columns[None, :]
    p = tl.load(w_ptr + w_offsets, mask=band, other=float("-inf") if SOFTMAX else 0.0).to(tl.float32)
    rows = _rows(i, b, h, B, H, SHARED)
    if SOFTMAX:
        p = tl.exp(p - tl.load(lse_ptr + rows, mask=i_valid, other=0.0)[None, :])
    if DROPOUT:
        p = tl.where(_keep(tl.load(seed_ptr).to(tl.uint32), rows[None, :], j, threshold), p * scale, 0.0)
    grad = _load_tile(grad_ptr, i, b, h * R + r, g_t, g_b, g_c, T, r < R)
    d_x = tl.dot(p, grad, input_precision=PRECISION)
    tl.store(
        dx_ptr + s[:, None] * dx_t + b * dx_b + (h * R + r)[None, :] * dx_c,
        d_x,
        mask=(s < S)[:, None] & (r < R)[None, :],
    )


@triton.jit
def _weight_products(
    grad_ptr, x_ptr, i, s, b, h, T, S, R,
    g_t, g_b, g_c, x_t, x_b, x_c,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """grad @ Xᵀ over a head's channels: the gradient of the weights before DropConnect and softmax, (BT, BS)."""
    products = tl.zeros((BT, BS), dtype=tl.float32)
    for r0 in range(0, R, BR):
        r = r0 + tl.arange(0, BR)
        grad = _load_tile(grad_ptr, i, b, h * R + r, g_t, g_b, g_c, T, r < R)
        x = _load_tile(x_ptr, s, b, h * R + r, x_t, x_b, x_c, S, r < R)
        products += tl.dot(grad, tl.trans(x), input_precision=PRECISION)
    return products


@triton.jit(do_not_specialize=VARYING)
def _backward_dynamic_weight_kernel(
    grad_ptr, x_ptr, w_ptr, lse_ptr, seed_ptr, dw_ptr,
    T, S, B, H, R, K, padding_l, threshold, scale,
    g_t, g_b, g_c, x_t, x_b, x_c, w_t, w_b, w_h, w_k, dw_t, dw_b, dw_h, dw_k,
    STEP: tl.constexpr, SOFTMAX: tl.constexpr, DROPOUT: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(T, BT)
    t0, b, h = p % blocks * BT, p // blocks // H, p // blocks % H
    i = t0 + tl.arange(0, BT)
    s = t0 // STEP * STEP - padding_l + tl.arange(0, BS)
    j = tl.arange(0, BS)[None, :] - _windows(t0, BT, STEP)[:, None]
    band = (j >= 0) & (j < K) & (i < T)[:, None]
    d_w = _weight_products(grad_ptr, x_ptr, i, s, b, h, T, S, R, g_t, g_b, g_c, x_t, x_b, x_c, BT, BS, BR, PRECISION)
    rows = (i * B + b) * H + h
    if DROPOUT:
        d_w = tl.where(_keep(tl.load(seed_ptr).to(tl.uint32), rows[:, None], j, threshold), d_w * scale, 0.0)
    if SOFTMAX:
        w_offsets = _band_offsets(i, b, h, t0, w_t, w_b, w_h, w_k, STEP, BT, BS)
        w = tl.load(w_ptr + w_offsets, mask=band, other=float("-inf"))
        lse = tl.load(lse_ptr + rows, mask=i < T, other=0.0)
        p_w = tl.exp(w.to(tl.float32) - lse[:, None])
        d_w = p_w * (d_w - tl.sum(p_w * d_w, axis=1)[:, None])
    tl.store(dw_ptr + _band_offsets(i, b, h, t0, dw_t, dw_b, dw_h, dw_k, STEP, BT, BS), d_w, mask=band)


@triton.jit(do_not_specialize=VARYING)
def _backward_light_weight_kernel(
    grad_ptr, x_ptr, partial_ptr,
    T, S, B, H, R, K, padding_l, splits,
    g_t, g_b, g_c, x_t, x_b, x_c,
    STEP: tl.constexpr, ROWS: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums the weights' gradient over every ``splits``-th block of ROWS positions: partial (splits, H, ROWS, K).

    ROWS is a multiple of STEP, so that the band lies alike in every block. No atomics: the sum is deterministic.
    """
    p = tl.program_id(0).to(tl.int64)
    split, h = p // H, p % H
    m, n = tl.arange(0, BT), tl.arange(0, BS)
    blocks = tl.cdiv(T, ROWS)
    total = tl.zeros((BT, BS), dtype=tl.float32)
    for block in range(split, blocks * B, splits):
        t0 = (block % blocks).to(tl.int64) * ROWS
        i = tl.where(m < ROWS, t0 + m, -1)
        total += _weight_products(
            grad_ptr, x_ptr, i, t0 - padding_l + n, (block // blocks).to(tl.int64), h, T, S, R,
            g_t, g_b, g_c, x_t, x_b, x_c, BT, BS, BR, PRECISION,
        )  # fmt: skip
    j = n[None, :] - (m // STEP * STEP)[:, None]
    tl.store(partial_ptr + (((p * ROWS + m) * K)[:, None] + j), total, mask=(j >= 0) & (j < K) & (m < ROWS)[:, None])


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
    out, lse = new_output(x, length), new_logsumexp(weight, softmax, "triton")
    sizes, blocks = _sizes(x, weight), _blocks("dynamic_conv", x, weight, length, step)
    with _on(x):
        _forward_kernel[_grid(length, sizes, blocks)](
            x_ptr=x, w_ptr=weight, out_ptr=out, lse_ptr=lse, seed_ptr=seed,
            T=length, S=x.size(0), **sizes, padding_l=padding_l, **_dropout(dropout),
            **_strides("x", x), **_weight_strides("w", weight), **_strides("o", out),
            K=weight.size(-1), STEP=step, SOFTMAX=softmax, DROPOUT=dropout > 0, SHARED=weight.dim() == 2, **blocks,
        )  # fmt: skip
    return out, lse


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, lse: Tensor, seed: Tensor | None,
    padding_l: int, step: int, softmax: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    length, width, shared = grad.size(0), weight.size(-1), weight.dim() == 2
    d_x, d_weight = torch.empty_like(x), torch.empty_like(weight)
    if shared and softmax:
        lse = weight.float().logsumexp(dim=-1)
    sizes, options = _sizes(x, weight), {"K": width, "STEP": step}
    of_x, of_weight = (
        _blocks(f"dynamic_conv, gradient of {name}", x, weight, max(length, x.size(0)), step)
        for name in ("x", "weight")
    )
    common = {"T": length, "S": x.size(0), **sizes, "padding_l": padding_l}
    with _on(x):
        _backward_x_kernel[_grid(x.size(0), sizes, of_x)](
            grad_ptr=grad, w_ptr=weight, lse_ptr=lse, seed_ptr=seed, dx_ptr=d_x, **common, **_dropout(dropout),
            **_strides("g", grad), **_weight_strides("w", weight), **_strides("dx", d_x),
            SOFTMAX=softmax, DROPOUT=dropout > 0, SHARED=shared, **options, **of_x,
        )  # fmt: skip
        if shared:
            rows = of_weight["BT"] // step * step
            pieces = triton.cdiv(length, rows) * sizes["B"]
            splits = min(pieces, 64)
            partial = torch.empty(splits, sizes["H"], rows, width, dtype=torch.float32, device=x.device)
            _backward_light_weight_kernel[(splits * sizes["H"],)](
                grad_ptr=grad, x_ptr=x, partial_ptr=partial, **common, splits=splits,
                **_strides("g", grad), **_strides("x", x), ROWS=rows, **options, **of_weight,
            )  # fmt: skip
            return d_x, finish_light_gradient(partial.sum((0, 2)), weight, seed, softmax, dropout)
        _backward_dynamic_weight_kernel[(triton.cdiv(length, of_weight["BT"]) * sizes["B"] * sizes["H"],)](
            grad_ptr=grad, x_ptr=x, w_ptr=weight, lse_ptr=lse, seed_ptr=seed, dw_ptr=d_weight, **common,
            **_dropout(dropout), **_strides("g", grad), **_strides("x", x), **_weight_strides("w", weight),
            **_weight_strides("dw", d_weight), SOFTMAX=softmax, DROPOUT=dropout > 0, **options, **of_weight,
        )  # fmt: skip
    return d_x, d_weight


def _sizes(x: Tensor, weight: Tensor) -> dict[str, int]:
    heads = weight.size(-2)
    return {"B": x.size(1), "H": heads, "R": x.size(2) // heads}


def _blocks(kernel: str, x: Tensor, weight: Tensor, length: int, step: int) -> dict[str, Any]:
    """A kernel's blocks and warps. tl.dot needs blocks of 16 at least."""
    heads, width = weight.shape[-2:]
    positions = 16 if max(length, step) <= 16 else 32
    launch = LAUNCHES[kernel, x.element_size()]
    return {
        "BT": positions,
        "BS": triton.next_power_of_2(positions + width - 1 + step - 1),
        "BR": min(max(triton.next_power_of_2(x.size(2) // heads), 16), launch.channels),
        "PRECISION": full_precision() if x.dtype == torch.float32 else half_precision(),
        "num_warps": launch.warps,
    }


def _grid(length: int, sizes: dict[str, int], blocks: dict[str, Any]) -> tuple[int]:
    per_head = triton.cdiv(length, blocks["BT"]) * triton.cdiv(sizes["R"], blocks["BR"])
    return (per_head * sizes["B"] * sizes["H"],)


def _dropout(dropout: float) -> dict[str, Any]:
    return {"threshold": drop_threshold(dropout), "scale": 1 / (1 - dropout)}


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    return {f"{name}_{axis}": tensor.stride(n) for n, axis in enumerate("tbc")}


def _weight_strides(name: str, weight: Tensor) -> dict[str, int]:
    strides = weight.stride() if weight.dim() == 4 else (0, 0, *weight.stride())
    return {f"{name}_{axis}": stride for axis, stride in zip("tbhk", strides, strict=True)}


def _on(x: Tensor) -> Any:
    return torch.cuda.device_of(x)
