"""Operators ``dynamic_conv`` and ``light_conv``: argument checks, choice of the implementation, gradients,
torch.compile.

The implementations are in ``cpu.py`` (PyTorch on any device) and ``kernels.py`` (Triton); ``naive.py`` defines the
result.
"""

from types import ModuleType
from typing import Any, Optional

import torch
from torch import Tensor

from amlp_fairseq.ops.backend import choose_backend
from amlp_fairseq.ops.dynamic_conv import cpu
from amlp_fairseq.ops.dynamic_conv.shared import new_logsumexp, new_output

TRITON_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Maximum ``step`` and maximum of step + k for the kernels: larger blocks exceed the shared memory of some GPUs.
TRITON_STEP, TRITON_WINDOW = 32, 98
#: Maximum number of sentences, and of blocks of 32 positions, for the kernels: CUDA's maximum grid.
TRITON_GRID = 65535


def dynamic_conv(
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    *,
    batch_first: bool = False,
    step: int = 1,
    softmax: bool = True,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """DynamicConv (Wu et al. 2019, Section 4): a depthwise convolution whose kernel changes with every position.

    Output i, channel c of head h is ``Σ_j W[i, h, j] · X[step·⌊i/step⌋ + j - padding_l, c]``, j = 0 … k-1, with X = 0
    outside the inputs and W the weights after softmax over j and DropConnect. Accumulates in float32 (float64 for
    float64 inputs). Differentiable once in ``x`` and ``weight``.

    Args:
        x: inputs, (S, B, C); (B, S, C) if ``batch_first``. Not copied for any strides. Inputs must be finite: an
            infinite input may affect outputs outside its windows.
        weight: (T, B, H, k), or (B, T, H, k) if ``batch_first``, before the softmax; head h has the C/H channels from
            h·C/H on. T may differ from S.
        padding_l: number of inputs to the left of a window's first output: k-1 is causal, (k-1)//2 centred; any int.
        batch_first: order of the tensors' axes.
        step: number of positions that share a window; z for decoders that write z words per step (IBDecoder, Eq. 4).
        softmax: normalise the weights over the kernel axis.
        dropout: probability of dropping a normalised weight (DropConnect).
        seed: (1,) int64 tensor on x's device, the seed of DropConnect (lower 32 bits), with the same result on every
            backend. Drawn from torch's generator if None.
        backend: ``auto``, ``torch`` or ``triton``.

    Returns:
        (T, B, C), or (B, T, C) if ``batch_first``, of x's dtype.

    Raises:
        ValueError: for invalid shapes, dtypes, devices or options; the message names the argument.
        RuntimeError: if ``backend="triton"`` cannot run.
    """
    _check("weight", weight, 4)
    if batch_first:
        weight = weight.transpose(0, 1)
    return _apply("dynamic_conv", x, weight, padding_l, None, batch_first, step, softmax, dropout, seed, backend)


def light_conv(
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    *,
    length: int | None = None,
    batch_first: bool = False,
    step: int = 1,
    softmax: bool = True,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """LightConv (Wu et al. 2019, Section 3): ``dynamic_conv`` with the same kernel at every position.

    Args:
        weight: weights before the softmax, (H, k). DropConnect drops a weight for all positions and sentences.
        length: the number T of outputs, by default the number S of inputs.

    See ``dynamic_conv`` for the other arguments, the result and the errors.
    """
    _check("weight", weight, 2)
    return _apply("light_conv", x, weight, padding_l, length, batch_first, step, softmax, dropout, seed, backend)


def _apply(
    operator: str,
    x: Tensor,
    weight: Tensor,
    padding_l: int,
    length: int | None,
    batch_first: bool,
    step: int,
    softmax: bool,
    dropout: float,
    seed: Tensor | None,
    backend: str,
) -> Tensor:
    _check("x", x, 3)
    if batch_first:
        x = x.transpose(0, 1)
    if length is None:
        length = weight.size(0) if weight.dim() == 4 else x.size(0)
    for name, positions in (("x", x.size(0)), ("weight" if weight.dim() == 4 else "length", length)):
        if positions < 1:
            raise ValueError(f"{name} must have at least one position, not {positions}")
    heads, width = weight.shape[-2:]
    if heads == 0 or x.size(2) % heads != 0:
        raise ValueError(f"x has {x.size(2)} channels, which the {heads} heads of weight do not divide")
    if width == 0:
        raise ValueError("weight must have a kernel width of at least 1, not 0")
    if weight.dim() == 4 and weight.size(1) != x.size(1):
        raise ValueError(f"weight is for {weight.size(1)} sentences, x has {x.size(1)}")
    if x.device != weight.device:
        raise ValueError(f"x is on {x.device}, weight on {weight.device}: they must be on one device")
    if step < 1:
        raise ValueError(f"step must be at least 1, not {step}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and less than 1, not {dropout}")
    blocks = max(x.size(1), x.size(0) // 32 + 1, length // 32 + 1)
    chosen = choose_backend(backend, x.device, operator, _triton_limit(x.dtype, weight.dtype, width, step, blocks))
    if dropout == 0:
        seed = None
    elif seed is None:
        seed = torch.randint(2**32, (1,), device=x.device)
    elif not (isinstance(seed, Tensor) and seed.shape == (1,) and seed.dtype == torch.int64) or seed.device != x.device:
        raise ValueError(f"seed must be an int64 tensor of shape (1,) on {x.device}, not {seed!r}")
    out, _ = _conv(x, weight, seed, padding_l, length, step, softmax, dropout, chosen)
    return out.transpose(0, 1) if batch_first else out


def _triton_limit(x: torch.dtype, weight: torch.dtype, width: int, step: int, blocks: int) -> str:
    """Reason why the kernels do not support such inputs; "" if they do."""
    if not {x, weight} <= set(TRITON_DTYPES):
        return f"the tensors are {x} and {weight}"
    if step > TRITON_STEP or width + step > TRITON_WINDOW:
        return f"the kernel width {width} with step {step} is too large"
    if blocks > TRITON_GRID:
        return f"there are more than {TRITON_GRID} sentences or blocks of 32 positions"
    return ""


def _check(name: str, tensor: Tensor, dimensions: int) -> None:
    if tensor.dim() != dimensions:
        raise ValueError(f"{name} must have {dimensions} dimensions, not the shape {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name} must hold floating-point numbers, not {tensor.dtype}")


def _implementation(backend: str) -> ModuleType:
    """Module with ``forward`` and ``backward``."""
    if backend == "torch":
        return cpu
    from amlp_fairseq.ops.dynamic_conv import kernels  # imports triton

    return kernels


# Custom operators, which torch.compile treats as one node. A weight of 4 dimensions is dynamic, a weight of 2
# dimensions shared. The second result is saved for the gradient: log2 Σ exp of the weights (B, H, T) in the kernels,
# else empty. Autocast is disabled: inside custom operators it would compute float32 products in half precision.


@torch.library.custom_op("amlp_fairseq::dynamic_conv", mutates_args=())
def _conv(
    x: Tensor,
    weight: Tensor,
    seed: Optional[Tensor],  # noqa: UP045
    padding_l: int,
    length: int,
    step: int,
    softmax: bool,
    dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        return _implementation(backend).forward(x, weight, seed, padding_l, length, step, softmax, dropout)


@_conv.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    seed: Tensor | None,
    padding_l: int,
    length: int,
    step: int,
    softmax: bool,
    dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return new_output(x, length), new_logsumexp(weight, softmax, backend)


@torch.library.custom_op("amlp_fairseq::dynamic_conv_backward", mutates_args=())
def _conv_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    logsumexp: Tensor,
    seed: Optional[Tensor],  # noqa: UP045
    padding_l: int,
    step: int,
    softmax: bool,
    dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    with torch.autocast(x.device.type, enabled=False):
        return _implementation(backend).backward(grad, x, weight, logsumexp, seed, padding_l, step, softmax, dropout)


@_conv_backward.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    logsumexp: Tensor,
    seed: Tensor | None,
    padding_l: int,
    step: int,
    softmax: bool,
    dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, seed, ctx.padding_l, _, ctx.step, ctx.softmax, ctx.dropout, ctx.backend = inputs
    ctx.save_for_backward(x, weight, output[1], seed)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, logsumexp, seed = ctx.saved_tensors
    d_x, d_weight = _conv_backward(
        grad, x, weight, logsumexp, seed, ctx.padding_l, ctx.step, ctx.softmax, ctx.dropout, ctx.backend
    )
    return d_x, d_weight, None, None, None, None, None, None, None


_conv.register_autograd(_gradients, setup_context=_save_for_backward)
