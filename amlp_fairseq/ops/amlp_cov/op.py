"""Operator ``cross_covariance``: argument checks, choice of the implementation, gradients, torch.compile.

The implementations are in ``cpu.py`` (PyTorch on any device) and ``kernels.py`` (Triton); ``naive.py`` defines the
result.
"""

from types import ModuleType
from typing import Any, Optional

import torch
from torch import Tensor

from amlp_fairseq.ops.amlp_cov import cpu
from amlp_fairseq.ops.amlp_cov.shared import new_gradients, new_outputs
from amlp_fairseq.ops.backend import choose_backend

TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Maximum d and e for the kernels: a program has a sum of d × e numbers in registers.
TRITON_CHANNELS = 128
#: Maximum number of sentences: CUDA's maximum grid.
TRITON_SENTENCES = 65535


def cross_covariance(
    x: Tensor,
    y: Tensor,
    temperature: Tensor | None = None,
    padding_mask: Tensor | None = None,
    *,
    normalize: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Covariance σ₂(XᵀY) of AMLP-Cov (Eq. 9 and 10) for every head, between channels over the positions.

    Row d of the result is ``softmax_e(τ · G[d, e] / (‖X[:, d]‖ · ‖Y[:, e]‖))`` with ``G = Σ_i X[i, d] Y[i, e]``; sum
    and norms run over the positions that are not padding. Norms and τ are the stabilisers of the published code, from
    XCiT (Ali et al. 2021). Accumulates in float32 (float64 for float64 inputs), in time and memory linear in n.
    Differentiable once in ``x``, ``y`` and ``temperature``; the gradient at padding is 0.

    Args:
        x: (B, H, n, d). Not copied as a whole, for any strides.
        y: (B, H, n, e), of x's dtype; pass x itself for the covariance of x. Not copied as a whole.
        temperature: τ of every head, (H,); 1 if None.
        padding_mask: bool (B, n), True at padding, where the values of x and y are ignored.
        normalize: divide by the norms, which are clamped to at least 1e-12.
        backend: ``auto``, ``torch`` or ``triton``.

    Returns:
        (B, H, d, e), float64 for float64 inputs, else float32: half precision would round nearly uniform weights to
        uniform weights. Uniform for a sentence of padding only.

    Raises:
        ValueError: for invalid shapes, dtypes or devices; the message names the argument.
        RuntimeError: if ``backend="triton"`` cannot run.
    """
    for name, tensor in (("x", x), ("y", y)):
        if tensor.dim() != 4:
            raise ValueError(f"{name} must have the 4 dimensions (B, H, n, channels), not {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, not {tensor.dtype}")
        if 0 in tensor.shape[2:]:
            raise ValueError(f"{name} must have at least one position and channel, not {tuple(tensor.shape)}")
    if x.shape[:3] != y.shape[:3]:
        raise ValueError(f"y must have the B, H and n of x, which is {tuple(x.shape)}, not {tuple(y.shape)}")
    if x.dtype != y.dtype:
        raise ValueError(f"y must be {x.dtype} as x is, not {y.dtype}")
    batch, heads, positions, _ = x.shape
    if temperature is not None and (temperature.shape != (heads,) or not temperature.is_floating_point()):
        shape = tuple(temperature.shape)
        raise ValueError(f"temperature must be ({heads},) floating-point numbers, not {temperature.dtype} {shape}")
    if padding_mask is not None and (padding_mask.shape != (batch, positions) or padding_mask.dtype != torch.bool):
        shape = tuple(padding_mask.shape)
        raise ValueError(f"padding_mask must be torch.bool {(batch, positions)}, not {padding_mask.dtype} {shape}")
    for name, argument in (("y", y), ("temperature", temperature), ("padding_mask", padding_mask)):
        if argument is not None and argument.device != x.device:
            raise ValueError(f"{name} must be on {x.device} as x is, not on {argument.device}")
    chosen = choose_backend(backend, x.device, "cross_covariance", _triton_limit(x, y))
    inputs = (x, None if y is x else y, temperature, padding_mask, normalize, chosen)
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return _cross_covariance(*inputs)[0]
    return _forward(*inputs)[0]  # the overhead of torch.library exceeds the time for a short sentence


def _triton_limit(x: Tensor, y: Tensor) -> str:
    """Reason why the kernels do not support such inputs; "" if they do."""
    if x.dtype not in TRITON_DTYPES:
        return f"the tensors are {x.dtype}"
    if max(x.size(3), y.size(3)) > TRITON_CHANNELS:
        return f"heads of {x.size(3)} and {y.size(3)} channels have more than {TRITON_CHANNELS}"
    if x.size(0) > TRITON_SENTENCES:
        return f"there are more than {TRITON_SENTENCES} sentences"
    return ""


def _implementation(backend: str) -> ModuleType:
    """Module with ``forward`` and ``backward``."""
    if backend == "torch":
        return cpu
    from amlp_fairseq.ops.amlp_cov import kernels  # imports triton

    return kernels


# Custom operators, which torch.compile treats as one node. y = None means that y is x, and both have one gradient. The
# results after the first are saved for the gradient. Autocast is disabled: inside custom operators it would compute
# float32 products in half precision.


def _forward(
    x: Tensor,
    y: Optional[Tensor],  # noqa: UP045
    temperature: Optional[Tensor],  # noqa: UP045
    padding_mask: Optional[Tensor],  # noqa: UP045
    normalize: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        return _implementation(backend).forward(x, y, temperature, padding_mask, normalize)


_cross_covariance = torch.library.custom_op("amlp_fairseq::cross_covariance", _forward, mutates_args=())


@_cross_covariance.register_fake
def _(
    x: Tensor, y: Tensor | None, temperature: Tensor | None, padding_mask: Tensor | None, normalize: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return new_outputs(x, y, normalize)


@torch.library.custom_op("amlp_fairseq::cross_covariance_backward", mutates_args=())
def _cross_covariance_backward(
    grad: Tensor,
    x: Tensor,
    y: Optional[Tensor],  # noqa: UP045
    temperature: Optional[Tensor],  # noqa: UP045
    padding_mask: Optional[Tensor],  # noqa: UP045
    covariance: Tensor,
    x_norm: Tensor,
    y_norm: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        return _implementation(backend).backward(grad, x, y, temperature, padding_mask, covariance, x_norm, y_norm)


@_cross_covariance_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    y: Tensor | None,
    temperature: Tensor | None,
    padding_mask: Tensor | None,
    covariance: Tensor,
    x_norm: Tensor,
    y_norm: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return new_gradients(x, y, temperature)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, _, ctx.backend = inputs
    ctx.save_for_backward(*tensors, *output[1:])


def _gradients(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    d_x, d_y, d_temperature = _cross_covariance_backward(grad, *ctx.saved_tensors, ctx.backend)
    _, y_needed, temperature_needed, *_ = ctx.needs_input_grad
    return d_x, d_y if y_needed else None, d_temperature if temperature_needed else None, None, None, None


_cross_covariance.register_autograd(_gradients, setup_context=_save_for_backward)
