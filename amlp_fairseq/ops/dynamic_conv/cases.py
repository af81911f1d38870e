"""Corner cases for tests and benchmarks, in which every implementation must agree with ``naive.py`` in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from amlp_fairseq.ops.dynamic_conv.naive import dynamic_conv_naive, light_conv_naive
from amlp_fairseq.ops.dynamic_conv.op import dynamic_conv, light_conv


class Case(NamedTuple):
    """Sizes as in ``dynamic_conv``; S = 0 means S = T."""

    T: int
    B: int
    C: int
    H: int
    k: int
    padding_l: int
    step: int = 1
    S: int = 0


CASES = {
    "causal": Case(T=40, B=2, C=12, H=3, k=7, padding_l=6),
    "centred": Case(T=37, B=2, C=8, H=2, k=5, padding_l=2),
    "even kernel": Case(T=19, B=2, C=8, H=2, k=4, padding_l=1),
    "one position": Case(T=1, B=1, C=4, H=1, k=31, padding_l=30),
    "shorter than the kernel": Case(T=7, B=3, C=20, H=4, k=15, padding_l=14),
    "kernel of 1": Case(T=6, B=2, C=4, H=2, k=1, padding_l=0),
    "kernel of 63, one sentence": Case(T=70, B=1, C=6, H=2, k=63, padding_l=62),
    "head for every channel": Case(T=18, B=2, C=8, H=8, k=3, padding_l=2),
    "head of 80 channels": Case(T=17, B=1, C=80, H=1, k=3, padding_l=1),
    "steps of 2": Case(T=36, B=2, C=8, H=2, k=5, padding_l=3, step=2),
    "steps of 3, the last not whole": Case(T=35, B=1, C=8, H=2, k=7, padding_l=4, step=3),
    "steps longer than the kernel": Case(T=9, B=2, C=8, H=2, k=3, padding_l=-1, step=4),
    "history before the outputs": Case(T=3, B=2, C=8, H=2, k=7, padding_l=0, S=9),
    "no input in any window": Case(T=4, B=1, C=4, H=2, k=3, padding_l=20),
}

#: Maximum allowed difference, relative to the maximum of the exact result. bfloat16 has 8 bits, to which Triton's
#: interpreter truncates. For float32 on a GPU see ``tolerances``.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def errors(
    case: Case,
    dtype: torch.dtype,
    backend: str,
    device: str = "cpu",
    *,
    shared: bool = False,
    softmax: bool = True,
    dropout: float = 0.0,
) -> dict[str, float]:
    """Errors of an implementation, of the output and each gradient: maximum difference from the exact result, relative
    to the maximum exact value.

    Args:
        shared: use LightConv's weights (H, k) instead of DynamicConv's.
    """
    x, weight, grad, options = _inputs(case, dtype, device, shared, softmax, dropout)

    def run(operator: Callable[..., Tensor], to: torch.dtype, **more: str) -> dict[str, Tensor]:
        inputs = [tensor.to(to).detach().requires_grad_() for tensor in (x, weight)]
        out = operator(*inputs, case.padding_l, **options, **more)
        d_x, d_weight = torch.autograd.grad(out, inputs, grad.to(to))
        return {"output": out.detach(), "gradient of x": d_x, "gradient of weight": d_weight}

    exact = run(light_conv_naive if shared else dynamic_conv_naive, torch.float64)
    ours = run(light_conv if shared else dynamic_conv, dtype, backend=backend)
    return {
        name: float((ours[name].double() - value).abs().max() / value.abs().max().clamp(min=1e-30))
        for name, value in exact.items()
    }


def tf32x3_error(terms: int) -> float:
    """Maximum error of a sum of float32 products computed by tensor cores as three products of tf32 ("tf32x3"),
    relative to the sum Σ|a b| of the magnitudes.

    A factor a becomes h + l, h = tf32(a) and l = tf32(a - h), each rounded to nearest with 11 bits: |l| ≤ 2^-11 |a|,
    and the remainder of a is at most 2^-22 |a|. The product omits the remainders of both factors and the product of
    both l, at most 2^-22 |a b| each: 3 · 2^-22. Products of 11 bits are exact in float32. Tensor cores add products in
    blocks of 4 and truncate the sum to 24 bits: a relative error of at most 2^-23 per block, with 3 · terms / 4 blocks.
    """
    return 3 * 2**-22 + 3 * math.ceil(terms / 4) * 2**-23


#: Maximum relative error of a softmax weight in float32: the exponent, up to 16, has a relative error of 2^-24, the
#: exponential an error of two units in the last place, and sum and quotient have smaller errors.
SOFTMAX_ERROR = 2**-19


def tolerances(
    case: Case,
    dtype: torch.dtype,
    device: str = "cpu",
    *,
    shared: bool = False,
    softmax: bool = True,
    dropout: float = 0.0,
) -> dict[str, float]:
    """Maximum allowed ``errors``.

    In float32 on a GPU this is a bound on the error of the sums. The bound is proportional to the sums of magnitudes,
    which may be much larger than the results, because terms cancel.
    """
    names = ("output", "gradient of x", "gradient of weight")
    if dtype != torch.float32 or device == "cpu":
        return dict.fromkeys(names, TOLERANCES[dtype])
    x, weight, grad, options = _inputs(case, dtype, "cpu", shared, softmax, dropout)
    options["softmax"] = False
    p = weight.double().softmax(dim=-1) if softmax else weight.double()

    operator: Callable[..., Tensor] = light_conv_naive if shared else dynamic_conv_naive

    def sums(x: Tensor, p: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        inputs = [tensor.double().detach().requires_grad_() for tensor in (x, p)]
        out = operator(*inputs, case.padding_l, **options)
        d_x, d_p = torch.autograd.grad(out, inputs, grad.double())
        return out.detach(), d_x, d_p

    out, d_x, d_p = sums(x, p, grad)
    abs_out, abs_d_x, abs_d_p = sums(x.abs(), p.abs(), grad.abs())
    if softmax:
        d_p = p * (d_p - (p * d_p).sum(dim=-1, keepdim=True))
        abs_d_p = p * (abs_d_p + (p * abs_d_p).sum(dim=-1, keepdim=True))
    window, channels = 32 + case.k + case.step, case.C // case.H  # numbers of terms in the sums of kernels.py
    terms = (window, window, channels + (case.T * case.B if shared else 0))
    pairs = zip((abs_out, abs_d_x, abs_d_p), (out, d_x, d_p), terms, strict=True)
    bounds = [
        (tf32x3_error(count) + SOFTMAX_ERROR * softmax) * float(magnitude.max() / exact.abs().max().clamp(min=1e-30))
        for magnitude, exact, count in pairs
    ]
    return dict(zip(names, bounds, strict=True))


def _inputs(
    case: Case, dtype: torch.dtype, device: str, shared: bool, softmax: bool, dropout: float
) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """Random x, weight and gradient of the output, and the operator's options."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    x = random(case.S or case.T, case.B, case.C)
    weight = random(case.H, case.k) if shared else random(case.T, case.B, case.H, case.k)
    grad = random(case.T, case.B, case.C)
    seed = torch.tensor([1234], device=device) if dropout else None
    options: dict[str, Any] = {"step": case.step, "softmax": softmax, "dropout": dropout, "seed": seed}
    if shared:
        options["length"] = case.T
    return x, weight, grad, options
