"""Triton kernels of the dynamic and the lightweight convolution.

Within a block of outputs the convolution is a product with a band matrix: P (BT × BS) @ X (BS × BR), where row i of P
contains the k weights of output i in the columns of its window. The kernels load weights directly into that form (each
weight once), normalise the rows and use the tensor cores: softmax and DropConnect need no extra memory.

Sizes: T outputs, S inputs, B batch, H heads, R = C/H channels of a head, K kernel width; BT, BS, BR are block sizes.
Offsets in memory are int64, the sum of separate offsets of a block's first element, rows and columns, which is cheaper
than an offset per element. Arithmetic is float32, except that operands of products have x's type; exponentials have
base 2.

Sizes are in ``do_not_specialize``, so that a new batch size or layer does not recompile. The strides of x, of the
output and of their gradients are specialised, so that multiples of 16 give loads of 16 bytes.
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
from amlp_fairseq.ops.launches import FACTORS, LAUNCHES, precision

#: Number of programs that share a sum over all positions.
PROGRAMS = 512
#: Arguments that depend on the batch or the layer and whose divisibility by 16 does not make loads faster.
VARYING = ["T", "S", "B", "K", "padding_l", "blocks", "threshold", "w_t", "w_b", "dw_t", "dw_b"]
LOG2_E = tl.constexpr(1.4426950408889634)


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
    """Mask of the weights ``j`` of ``rows`` = (t·B + b)·H + h that DropConnect keeps."""
    keys = _mix(_mix(seed ^ (rows >> 32).to(tl.uint32)) ^ rows.to(tl.uint32))
    return _mix(keys + j.to(tl.uint32) * 0x9E3779B9) >= threshold.to(tl.uint32)


@triton.jit
def _inside(n, first, size):
    """Mask of the positions first + n (n int32) in 0 … size - 1."""
    return (n >= -first) & (n < size - first)


@triton.jit
def _windows(t0, SIZE: tl.constexpr, STEP: tl.constexpr):
    """First positions of the windows of outputs t0, t0 + 1, …, relative to the step of t0, (SIZE,) int32."""
    return (t0 % STEP + tl.arange(0, SIZE)) // STEP * STEP


@triton.jit
def _offset(n, stride):
    """Product of int32 numbers as int64, by one multiplication."""
    return n.to(tl.int64) * stride


@triton.jit
def _tile(pointer, t, b, c, stride_t, stride_b, stride_c, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr):
    """Pointers (POSITIONS, CHANNELS) to positions t, t + 1, … and channels c, c + 1, …."""
    rows = pointer + _offset(t, stride_t) + _offset(b, stride_b) + _offset(c, stride_c)
    rows += _offset(tl.arange(0, POSITIONS), stride_t)
    return rows[:, None] + _offset(tl.arange(0, CHANNELS), stride_c)[None, :]


@triton.jit
def _load_tile(
    pointer, t, b, c, stride_t, stride_b, stride_c, size_t, c_valid, POSITIONS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Values (POSITIONS, CHANNELS) at ``_tile``, zero outside."""
    valid = _inside(tl.arange(0, POSITIONS), t, size_t)[:, None] & c_valid[None, :]
    return tl.load(_tile(pointer, t, b, c, stride_t, stride_b, stride_c, POSITIONS, CHANNELS), mask=valid, other=0.0)


@triton.jit
def _band(i0, T, K, first, windows, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr):
    """Indices (OUTPUTS, INPUTS) of the weights between outputs and inputs, and mask of the indices in 0 … K - 1.

    Args:
        first: index of the weight between the first input and an output whose window begins at 0.
    """
    j = (first - windows)[:, None] + tl.arange(0, INPUTS)[None, :]
    width = tl.where(_inside(tl.arange(0, OUTPUTS), i0, T), K, 0)
    return j, j.to(tl.uint32) < width.to(tl.uint32)[:, None]


@triton.jit
def _band_pointers(
    pointer, i0, b, h, first, windows, w_t, w_b, w_h, w_k,
    STEP: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Pointers to the weights of ``_band``; arbitrary outside the band."""
    rows = pointer + _offset(i0, w_t) + _offset(b, w_b) + _offset(h, w_h) + _offset(first, w_k)
    if STEP == 1:
        rows += _offset(tl.arange(0, OUTPUTS), w_t - w_k)
    else:
        rows += _offset(tl.arange(0, OUTPUTS), w_t) - _offset(windows, w_k)
    return rows[:, None] + _offset(tl.arange(0, INPUTS), w_k)[None, :]


@triton.jit
def _log_sums(pointer, i0, b, h, T, H, OUTPUTS: tl.constexpr):
    """Pointers (OUTPUTS,) to log2 Σ exp of each output's weights, and mask of the outputs that exist."""
    n = tl.arange(0, OUTPUTS)
    return pointer + ((_offset(b, H) + h) * T + i0) + n.to(tl.int64), _inside(n, i0, T)


@triton.jit
def _normalised(
    w_ptr, lse_ptr, i0, b, h, T, H, first, windows, band, w_t, w_b, w_h, w_k,
    STEP: tl.constexpr, SOFTMAX: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Band matrix before DropConnect, normalised with the sums stored by the forward pass."""
    pointers = _band_pointers(w_ptr, i0, b, h, first, windows, w_t, w_b, w_h, w_k, STEP, OUTPUTS, INPUTS)
    p = tl.load(pointers, mask=band, other=float("-inf") if SOFTMAX else 0.0).to(tl.float32)
    if SOFTMAX:
        pointers, i_valid = _log_sums(lse_ptr, i0, b, h, T, H, OUTPUTS)
        p = tl.exp2(p * LOG2_E - tl.load(pointers, mask=i_valid, other=0.0)[:, None])
    return p


@triton.jit
def _dropped(x, seed_ptr, i0, b, h, B, H, j, threshold, scale, OUTPUTS: tl.constexpr, SHARED: tl.constexpr):
    """Apply DropConnect to values at the weights j of each output, or with SHARED at the weights j of the head."""
    rows = tl.zeros((OUTPUTS,), dtype=tl.int64) + h
    if not SHARED:
        rows += (_offset(i0, B) + b) * H + _offset(tl.arange(0, OUTPUTS), B * H)
    return tl.where(_keep(tl.load(seed_ptr).to(tl.uint32), rows[:, None], j, threshold), x * scale, 0.0)


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    x_ptr, w_ptr, out_ptr, lse_ptr, seed_ptr,
    T, S, B, H, R, K, padding_l, threshold, scale,
    x_t, x_b, x_c, w_t, w_b, w_h, w_k, o_t, o_b, o_c,
    STEP: tl.constexpr, SOFTMAX: tl.constexpr, DROPOUT: tl.constexpr, SHARED: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, R_BLOCKS: tl.constexpr,
    FACTOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    h, b, t0 = tl.program_id(0) // R_BLOCKS, tl.program_id(1), tl.program_id(2) * BT
    r = tl.program_id(0) % R_BLOCKS * BR
    c, c_valid = h * R + r, tl.arange(0, BR) < R - r
    x = _load_tile(x_ptr, t0 // STEP * STEP - padding_l, b, c, x_t, x_b, x_c, S, c_valid, BS, BR)
    first, windows = t0 * 0, _windows(t0, BT, STEP)
    j, band = _band(t0, T, K, first, windows, BT, BS)
    pointers = _band_pointers(w_ptr, t0, b, h, first, windows, w_t, w_b, w_h, w_k, STEP, BT, BS)
    p = tl.load(pointers, mask=band, other=float("-inf") if SOFTMAX else 0.0).to(tl.float32)
    sums, i_valid = _log_sums(lse_ptr, t0, b, h, T, H, BT)
    if SOFTMAX:
        top = tl.where(i_valid, tl.max(p, axis=1), 0.0) * LOG2_E
        p = tl.exp2(p * LOG2_E - top[:, None])
        total = tl.where(i_valid, tl.sum(p, axis=1), 1.0)
        p *= (1 / total)[:, None]
        if not SHARED:
            tl.store(sums, top + tl.log2(total), mask=i_valid)
    if DROPOUT:
        p = _dropped(p, seed_ptr, t0, b, h, B, H, j, threshold, scale, BT, SHARED)
    out = tl.dot(p.to(FACTOR), x.to(FACTOR), input_precision=PRECISION)
    tl.store(_tile(out_ptr, t0, b, c, o_t, o_b, o_c, BT, BR), out, mask=i_valid[:, None] & c_valid[None, :])


@triton.jit(do_not_specialize=VARYING)
def _backward_x_kernel(
    grad_ptr, w_ptr, lse_ptr, seed_ptr, dx_ptr,
    T, S, B, H, R, K, padding_l, threshold, scale,
    g_t, g_b, g_c, w_t, w_b, w_h, w_k, dx_t, dx_b, dx_c,
    STEP: tl.constexpr, SOFTMAX: tl.constexpr, DROPOUT: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, R_BLOCKS: tl.constexpr,
    FACTOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute d_x = Pᵀ @ grad for BT inputs s, from the BS outputs i whose windows contain them."""
    h, b, s0 = tl.program_id(0) // R_BLOCKS, tl.program_id(1), tl.program_id(2) * BT
    r = tl.program_id(0) % R_BLOCKS * BR
    c, c_valid = h * R + r, tl.arange(0, BR) < R - r
    i0 = s0 + padding_l - (K - 1)
    grad = _load_tile(grad_ptr, i0, b, c, g_t, g_b, g_c, T, c_valid, BS, BR)
    first, windows = K - 1 + i0 % STEP, _windows(i0, BS, STEP)
    j, band = _band(i0, T, K, first, windows, BS, BT)
    p = _normalised(
        w_ptr, lse_ptr, i0, b, h, T, H, first, windows, band, w_t, w_b, w_h, w_k, STEP, SOFTMAX, BS, BT
    )  # fmt: skip
    if DROPOUT:
        p = _dropped(p, seed_ptr, i0, b, h, B, H, j, threshold, scale, BS, False)
    d_x = tl.trans(tl.dot(tl.trans(grad.to(FACTOR)), p.to(FACTOR), input_precision=PRECISION))
    s_valid = _inside(tl.arange(0, BT), s0, S)
    tl.store(_tile(dx_ptr, s0, b, c, dx_t, dx_b, dx_c, BT, BR), d_x, mask=s_valid[:, None] & c_valid[None, :])


@triton.jit(do_not_specialize=VARYING)
def _backward_weight_kernel(
    grad_ptr, x_ptr, w_ptr, lse_ptr, seed_ptr, dw_ptr,
    T, S, B, H, R, K, padding_l, threshold, scale,
    g_t, g_b, g_c, x_t, x_b, x_c, w_t, w_b, w_h, w_k, dw_t, dw_b, dw_h, dw_k,
    STEP: tl.constexpr, SOFTMAX: tl.constexpr, DROPOUT: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, R_BLOCKS: tl.constexpr,
    FACTOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d_W = grad @ Xᵀ of BT outputs i and the BS inputs s in their windows, then DropConnect's and softmax's."""
    h, b, t0 = tl.program_id(0), tl.program_id(1), tl.program_id(2) * BT
    first, windows = t0 * 0, _windows(t0, BT, STEP)
    j, band = _band(t0, T, K, first, windows, BT, BS)
    d_w = tl.zeros((BT, BS), dtype=tl.float32)
    for r in range(0, R_BLOCKS * BR, BR):
        c, c_valid = h * R + r, tl.arange(0, BR) < R - r
        grad = _load_tile(grad_ptr, t0, b, c, g_t, g_b, g_c, T, c_valid, BT, BR)
        x = _load_tile(x_ptr, t0 // STEP * STEP - padding_l, b, c, x_t, x_b, x_c, S, c_valid, BS, BR)
        d_w += tl.dot(grad.to(FACTOR), tl.trans(x.to(FACTOR)), input_precision=PRECISION)
    if DROPOUT:
        d_w = _dropped(d_w, seed_ptr, t0, b, h, B, H, j, threshold, scale, BT, False)
    if SOFTMAX:
        p = _normalised(
            w_ptr, lse_ptr, t0, b, h, T, H, first, windows, band, w_t, w_b, w_h, w_k, STEP, SOFTMAX, BT, BS
        )  # fmt: skip
        d_w = p * (d_w - tl.sum(p * d_w, axis=1)[:, None])
    tl.store(_band_pointers(dw_ptr, t0, b, h, first, windows, dw_t, dw_b, dw_h, dw_k, STEP, BT, BS), d_w, mask=band)


@triton.jit(do_not_specialize=VARYING)
def _backward_light_kernel(
    grad_ptr, x_ptr, w_ptr, lse_ptr, seed_ptr, dx_ptr, partial_ptr,
    T, S, B, H, R, K, padding_l, blocks, threshold, scale,
    g_t, g_b, g_c, x_t, x_b, x_c, w_h, w_k, dx_t, dx_b, dx_c,
    STEP: tl.constexpr, ROWS: tl.constexpr, SOFTMAX: tl.constexpr, DROPOUT: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, BR: tl.constexpr, R_BLOCKS: tl.constexpr,
    FACTOR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same for a head's shared weights, which are alike in all blocks of ROWS inputs because STEP divides ROWS.

    A program takes every ``splits``-th block, and writes what they add to d_W before softmax and DropConnect: partial
    (H, splits, BS, K). No atomics: the sum is deterministic.
    """
    h, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    phase = ((padding_l - (K - 1)) % STEP + STEP) % STEP  # % has the sign of what it divides
    first, windows = K - 1 + phase, _windows(phase, BS, STEP)
    j = (first - windows)[:, None] + tl.arange(0, BT)[None, :]
    band = j.to(tl.uint32) < K.to(tl.uint32)
    pointers = w_ptr + _offset(h, w_h) + _offset(j, w_k)
    p = tl.load(pointers, mask=band, other=float("-inf") if SOFTMAX else 0.0).to(tl.float32)
    if SOFTMAX:
        p = tl.exp2(p * LOG2_E - tl.load(lse_ptr + h.to(tl.int64)))
    if DROPOUT:
        p = _dropped(p, seed_ptr, 0, 0, h, B, H, j, threshold, scale, BS, True)
    p = p.to(FACTOR)
    d_w = tl.zeros((BS, BT), dtype=tl.float32)
    for block in range(split, blocks * B, splits):
        b, s0 = block % B, block // B * ROWS
        i0 = s0 + padding_l - (K - 1)
        stop = tl.minimum(S, s0 + ROWS)
        s_valid = _inside(tl.arange(0, BT), s0, stop)
        for r in range(0, R_BLOCKS * BR, BR):
            c, c_valid = h * R + r, tl.arange(0, BR) < R - r
            grad = _load_tile(grad_ptr, i0, b, c, g_t, g_b, g_c, T, c_valid, BS, BR)
            x = _load_tile(x_ptr, s0, b, c, x_t, x_b, x_c, stop, c_valid, BT, BR)
            d_w += tl.dot(grad.to(FACTOR), tl.trans(x.to(FACTOR)), input_precision=PRECISION)
            d_x = tl.trans(tl.dot(tl.trans(grad.to(FACTOR)), p, input_precision=PRECISION))
            tl.store(_tile(dx_ptr, s0, b, c, dx_t, dx_b, dx_c, BT, BR), d_x, mask=s_valid[:, None] & c_valid[None, :])
    rows = partial_ptr + (_offset(h, splits) + split) * BS * K + _offset(tl.arange(0, BS), K)
    tl.store(rows[:, None] + j.to(tl.int64), d_w, mask=band)


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
            K=weight.size(-1), STEP=step, SOFTMAX=softmax, DROPOUT=dropout > 0, SHARED=weight.dim() == 2,
            FACTOR=_factor(x, weight, softmax), **blocks,
        )  # fmt: skip
    return out, lse


def backward(
    grad: Tensor, x: Tensor, weight: Tensor, lse: Tensor, seed: Tensor | None,
    padding_l: int, step: int, softmax: bool, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    length, width, shared = grad.size(0), weight.size(-1), weight.dim() == 2
    d_x, d_weight = torch.empty_like(x), torch.empty_like(weight)
    sizes, options = _sizes(x, weight), {"K": width, "STEP": step, "SOFTMAX": softmax, "DROPOUT": dropout > 0}
    options["FACTOR"] = _factor(x, weight, softmax)
    common = {"T": length, "S": x.size(0), **sizes, "padding_l": padding_l, **_dropout(dropout)}
    tensors = {"grad_ptr": grad, "w_ptr": weight, "lse_ptr": lse, "seed_ptr": seed, **_strides("g", grad)}
    longest = max(length, x.size(0))
    with _on(x):
        if not shared:
            x_blocks, weight_blocks = (
                _blocks(f"dynamic_conv, gradient of {name}", x, weight, longest, step) for name in ("x", "weight")
            )
            _backward_x_kernel[_grid(x.size(0), sizes, x_blocks)](
                **tensors, dx_ptr=d_x, **common, **_weight_strides("w", weight), **_strides("dx", d_x),
                **options, **x_blocks,
            )  # fmt: skip
            _backward_weight_kernel[(sizes["H"], sizes["B"], triton.cdiv(length, weight_blocks["BT"]))](
                **tensors, x_ptr=x, dw_ptr=d_weight, **common, **_strides("x", x), **_weight_strides("w", weight),
                **_weight_strides("dw", d_weight), **options, **weight_blocks,
            )  # fmt: skip
            return d_x, d_weight
        blocks = _blocks("light_conv, gradients", x, weight, longest, step)
        rows = blocks["BT"] // step * step
        pieces = triton.cdiv(x.size(0), rows)
        splits = min(pieces * sizes["B"], triton.cdiv(PROGRAMS, sizes["H"]))
        partial = torch.zeros(sizes["H"], splits, blocks["BS"], width, dtype=torch.float32, device=x.device)
        if softmax:
            tensors["lse_ptr"] = weight.float().logsumexp(dim=-1) * LOG2_E.value
        _backward_light_kernel[(sizes["H"], splits)](
            **tensors, x_ptr=x, dx_ptr=d_x, partial_ptr=partial, **common, blocks=pieces,
            **_strides("x", x), w_h=weight.stride(0), w_k=weight.stride(1), **_strides("dx", d_x),
            ROWS=rows, **options, **blocks,
        )  # fmt: skip
    return d_x, finish_light_gradient(partial.sum((1, 2)), weight, seed, softmax, dropout)


def _sizes(x: Tensor, weight: Tensor) -> dict[str, int]:
    heads = weight.size(-2)
    return {"B": x.size(1), "H": heads, "R": x.size(2) // heads}


def _blocks(kernel: str, x: Tensor, weight: Tensor, length: int, step: int) -> dict[str, Any]:
    """Block sizes and warps of a kernel. ``tl.dot`` needs blocks of at least 16."""
    heads, width = weight.shape[-2:]
    launch = LAUNCHES[kernel, x.element_size()]
    positions = 16 if max(length, step) <= 16 else launch.positions
    window = triton.next_power_of_2(positions + width - 1 + step - 1)
    channels = min(max(triton.next_power_of_2(x.size(2) // heads), 16), launch.channels)
    return {
        "BT": positions,
        "BS": window,
        "BR": channels,
        "R_BLOCKS": triton.cdiv(x.size(2) // heads, channels),
        "PRECISION": precision(x.dtype),
        "num_warps": launch.warps * (2 if window > 64 and x.dtype == torch.float32 else 1),  # for more registers
    }


def _factor(x: Tensor, weight: Tensor, softmax: bool) -> Any:
    """Operand type of products: the dtype of x, or float32 if float32 weights could overflow in it."""
    return FACTORS[x.dtype if softmax else torch.promote_types(x.dtype, weight.dtype)]


def _grid(length: int, sizes: dict[str, int], blocks: dict[str, Any]) -> tuple[int, int, int]:
    return (sizes["H"] * blocks["R_BLOCKS"], sizes["B"], triton.cdiv(length, blocks["BT"]))


def _dropout(dropout: float) -> dict[str, Any]:
    return {"threshold": drop_threshold(dropout), "scale": 1 / (1 - dropout)}


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    return {f"{name}_{axis}": tensor.stride(n) for n, axis in enumerate("tbc")}


def _weight_strides(name: str, weight: Tensor) -> dict[str, int]:
    strides = weight.stride() if weight.dim() == 4 else (0, 0, *weight.stride())
    return {f"{name}_{axis}": stride for axis, stride in zip("tbhk", strides, strict=True)}


def _on(x: Tensor) -> Any:
    return torch.cuda.device_of(x)
