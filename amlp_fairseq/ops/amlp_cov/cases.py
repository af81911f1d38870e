"""Corner cases for tests and benchmarks, in which every implementation must agree with ``naive.py`` in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from amlp_fairseq.ops.amlp_cov.naive import cross_covariance_naive
from amlp_fairseq.ops.amlp_cov.op import cross_covariance


class Case(NamedTuple):
    """Sizes as in ``cross_covariance``.

    Attributes:
        counted: first and end position of every sentence without padding; no mask if empty.
        memory: order of the axes in memory, outermost first.
    """

    B: int
    H: int
    n: int
    d: int
    e: int
    counted: tuple[tuple[int, int], ...] = ()
    memory: str = "BHnd"
    temperature: bool = True
    normalize: bool = True


CASES = {
    "plain": Case(B=2, H=3, n=37, d=8, e=8),
    "one position": Case(B=1, H=2, n=1, d=4, e=4, normalize=False),  # its normalised channels are 1 or -1
    "two positions": Case(B=2, H=2, n=2, d=4, e=6),
    "one channel": Case(B=1, H=2, n=9, d=1, e=5),
    "3 and 5 channels": Case(B=2, H=2, n=20, d=3, e=5),
    "head of 80 channels": Case(B=1, H=2, n=45, d=80, e=20),
    "head of 128 channels": Case(B=1, H=1, n=70, d=16, e=128),
    "one head": Case(B=3, H=1, n=32, d=16, e=16),
    "long, the last block not whole": Case(B=1, H=2, n=619, d=5, e=4, memory="nBHd"),
    "padding left, right, both": Case(B=3, H=2, n=40, d=8, e=4, counted=((7, 40), (0, 11), (33, 37))),
    "a sentence of padding": Case(B=2, H=2, n=35, d=4, e=8, counted=((0, 0), (0, 35)), memory="nBHd"),
    "long padding": Case(B=2, H=1, n=600, d=4, e=4, counted=((0, 3), (590, 600))),
    "positions outermost": Case(B=2, H=2, n=33, d=8, e=8, memory="nBHd"),
    "heads within positions": Case(B=2, H=2, n=33, d=8, e=8, memory="BnHd"),
    "channels outermost": Case(B=2, H=2, n=17, d=4, e=8, memory="dHnB"),
    "no temperature": Case(B=2, H=2, n=21, d=8, e=8, temperature=False),
    "not normalised": Case(B=2, H=2, n=12, d=8, e=6, counted=((0, 12), (3, 11)), normalize=False),
    "neither": Case(B=2, H=2, n=12, d=4, e=8, temperature=False, normalize=False),
}

#: Maximum allowed difference, relative to the maximum of the exact result. bfloat16 has 8 bits, to which Triton's
#: interpreter truncates. For float32 on a GPU see ``tolerances``.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def errors(case: Case, dtype: torch.dtype, backend: str, device: str = "cpu") -> dict[str, float]:
    """Errors of an implementation, of the output and each gradient: maximum difference from the exact result, relative
    to the maximum exact value."""
    inputs, grad = _inputs(case, dtype, device)
    mask = padding_mask(case, device)

    def run(operator: Callable[..., Tensor], to: torch.dtype, **more: str) -> dict[str, Tensor]:
        tensors = {name: tensor.to(to).detach().requires_grad_() for name, tensor in inputs.items()}
        out = operator(**tensors, padding_mask=mask, normalize=case.normalize, **more)
        gradients = torch.autograd.grad(out, list(tensors.values()), grad.to(to))
        named = {f"gradient of {name}": value for name, value in zip(tensors, gradients, strict=True)}
        return {"output": out.detach(), **named}

    exact = run(cross_covariance_naive, torch.float64)
    ours = run(cross_covariance, dtype, backend=backend)
    return {
        name: float((ours[name].double() - value).abs().max() / value.abs().max().clamp(min=1e-30))
        for name, value in exact.items()
    }


def tolerances(case: Case, dtype: torch.dtype, device: str = "cpu") -> dict[str, float]:
    """Maximum allowed ``errors``.

    In float32 on a GPU the error of a temperature's gradient is relative to the sum of its terms' magnitudes, which may
    be much larger than the gradient, because terms cancel.
    """
    inputs, grad = _inputs(case, dtype, "cpu")
    allowed = dict.fromkeys(("output", *(f"gradient of {name}" for name in inputs)), TOLERANCES[dtype])
    if case.temperature and dtype == torch.float32 and device != "cpu":
        x, y, temperature = (tensor.double() for tensor in inputs.values())
        out = cross_covariance_naive(x, y, None, padding_mask(case), normalize=case.normalize)
        scores = out.log() - out.log().mean(dim=-1, keepdim=True)  # up to a constant per row, which has no effect
        p, d_p = (temperature[:, None, None] * scores).softmax(dim=-1), grad.double()
        terms = p * (d_p - (p * d_p).sum(dim=-1, keepdim=True)) * scores
        total = terms.sum(dim=(0, 2, 3)).abs().max()
        allowed["gradient of temperature"] *= float(terms.abs().sum(dim=(0, 2, 3)).max() / total)
    return allowed


def _inputs(case: Case, dtype: torch.dtype, device: str) -> tuple[dict[str, Tensor], Tensor]:
    """Random x, y and, if the case has one, temperature; random gradient of the output."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    inputs = {"x": _in_memory(random(case.B, case.H, case.n, case.d), case.memory)}
    inputs["y"] = _in_memory(random(case.B, case.H, case.n, case.e), case.memory)
    if case.temperature:
        inputs["temperature"] = 1 + random(case.H).square()
    return inputs, random(case.B, case.H, case.d, case.e)


def padding_mask(case: Case, device: str = "cpu") -> Tensor | None:
    """Padding mask (B, n) of a case."""
    if not case.counted:
        return None
    first, end = torch.tensor(case.counted, device=device).unsqueeze(2).unbind(1)
    positions = torch.arange(case.n, device=device)
    return (positions < first) | (positions >= end)


def _in_memory(tensor: Tensor, order: str) -> Tensor:
    """Copy of a tensor (B, H, n, d) with its axes in memory in another order."""
    axes = ["BHnd".index(axis) for axis in order]
    return tensor.permute(axes).contiguous().permute([order.index(axis) for axis in "BHnd"])
