"""The moving average against its recursion."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from memory import peak_memory
from torch import Tensor

from amlp_fairseq.ops.ema import exponential_moving_average

#: Lengths and β: around the border of a block of 64, and several of them.
CASES = [(1, 0.9), (2, 0.5), (63, 0.9), (64, 0.99), (65, 0.9), (65, 0), (200, 0.99), (5000, 0.5), (5000, 0.99)]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def recursion(x: Tensor, beta: float) -> Tensor:
    """y_i = β y_{i-1} + (1 - β) x_i along the last axis but one, in float64."""
    values = x.double().numpy()
    out, last = np.empty_like(values), np.zeros_like(values[..., 0, :])
    for i in range(values.shape[-2]):
        last = beta * last + (1 - beta) * values[..., i, :]
        out[..., i, :] = last
    return torch.from_numpy(out)


@pytest.mark.parametrize(("length", "beta"), CASES)
def test_average_is_the_recursion(length: int, beta: float) -> None:
    x = random(2, 3, length, 2) + 0.3  # an average that does not vanish
    for dtype, tolerance in (
        (torch.float64, 1e-12),
        (torch.float32, 1e-6),
        (torch.float16, 1e-3),
        (torch.bfloat16, 8e-3),
    ):
        rounded = x.to(dtype)
        out = exponential_moving_average(rounded, beta)
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), recursion(rounded, beta), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("length", "beta"), CASES)
def test_gradient_is_the_reversed_recursion(length: int, beta: float) -> None:
    x, grad = random(3, length, 2).requires_grad_(), random(3, length, 2) + 0.3
    (out,) = torch.autograd.grad(exponential_moving_average(x, beta), x, grad)
    torch.testing.assert_close(out, recursion(grad.flip(1), beta).flip(1), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3)], ids=["3 axes", "4 axes", "5 axes"])
def test_padding_counts_as_nothing(shape: tuple[int, ...]) -> None:
    length, words = 150, [slice(70, None), slice(None, 67), slice(65, 66), slice(3, 140), slice(None)]
    mask = torch.ones(length, len(words), dtype=torch.bool).T  # not contiguous
    for row, real in zip(mask, words, strict=True):
        row[real] = False
    x = random(len(words), *shape, length, 2)
    for sentence, hidden in zip(x, mask, strict=True):
        sentence[..., hidden, :] = torch.nan
    x.requires_grad_()
    out = exponential_moving_average(x, 0.9, mask)
    for b, real in enumerate(words):
        alone = x[b : b + 1, ..., real, :].detach()
        averages = out[b : b + 1, ..., real, :].detach()
        torch.testing.assert_close(averages, recursion(alone, 0.9), atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(averages[..., 0, :], 0.1 * alone[..., 0, :])
    chosen = torch.stack([out[b, ..., real, :].sum() for b, real in enumerate(words)]).sum()
    (grad,) = torch.autograd.grad(chosen, x)
    hidden = mask.view(len(words), *[1] * len(shape), length, 1).expand_as(x)
    assert torch.equal(grad[hidden], torch.zeros_like(grad[hidden]))
    assert grad[~hidden].gt(0).all()


@pytest.mark.parametrize("padded", [False, True], ids=["no padding", "padding"])
@pytest.mark.parametrize("beta", [0, 0.9])
def test_gradients_by_finite_differences(beta: float, padded: bool) -> None:
    x = random(2, 67, 1).requires_grad_()
    position = torch.arange(67)
    mask = torch.stack([position < 3, position > 60]) if padded else None
    assert torch.autograd.gradcheck(lambda y: exponential_moving_average(y, beta, mask), x)
    assert torch.autograd.gradgradcheck(lambda y: exponential_moving_average(y, beta, mask) ** 2, x)


@pytest.mark.parametrize("beta", [-0.1, 1, 1.5, float("nan")])
def test_beta_out_of_range_is_named(beta: float) -> None:
    with pytest.raises(ValueError, match=f"beta must be at least 0 and less than 1, not {beta}"):
        exponential_moving_average(random(1, 2, 1), beta)


def test_memory_is_linear_in_the_length() -> None:
    def peak(length: int) -> int:
        x = random(1, length, 16).float().requires_grad_()
        return peak_memory(lambda: torch.autograd.grad(exponential_moving_average(x, 0.9).sum(), x))

    peak(64)
    less, more = peak(2048), peak(4096)
    assert 2048 * 16 * 4 < less < more < 2.1 * less
    assert (more - less) / (2048 * 16 * 4) < 6  # tensors of the size of x
