"""The parallel scan against the recurrence, one position after the other in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from memory import peak_memory
from torch import Tensor

from amlp_fairseq.ops.linear_recurrence import linear_recurrence

#: Around powers of two, where the number of passes changes.
LENGTHS = [1, 2, 3, 4, 5, 8, 9, 31, 200]


def arguments(length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """decay, x and initial; of some channels the decay is nearly 0 or 1, or just that."""
    generator = torch.Generator().manual_seed(length)
    decay = torch.rand(length, 2, 6, generator=generator, dtype=dtype)
    decay[..., 0], decay[..., 1], decay[..., 2], decay[..., 3] = 0, 1, 1e-30, 1 - 1e-6
    x = torch.randn(length, 2, 6, generator=generator, dtype=dtype)
    return decay, x, torch.randn(2, 6, generator=generator, dtype=dtype)


def loop(decay: Tensor, x: Tensor, initial: Tensor) -> Tensor:
    h, rows = initial.double().numpy(), []
    for a, b in zip(decay.double().numpy(), x.double().numpy(), strict=True):
        h = a * h + b
        rows.append(h)
    return torch.from_numpy(np.stack(rows))


@pytest.mark.parametrize("length", LENGTHS)
def test_the_scan_is_the_loop(length: int) -> None:
    torch.testing.assert_close(linear_recurrence(*arguments(length)), loop(*arguments(length)), atol=1e-12, rtol=1e-12)
    # In float32 each pass rounds a product and a sum; the numbers are sums of at most `length` about 1.
    single = arguments(length, torch.float32)
    bound = 2 * (length.bit_length() + 1) * 2**-24 * float(loop(*(x.abs() for x in single)).max())
    torch.testing.assert_close(linear_recurrence(*single).double(), loop(*single), atol=bound, rtol=0)


@pytest.mark.parametrize("length", [1, 4, 7])
def test_gradients_by_finite_differences(length: int) -> None:
    decay, x, initial = (value.requires_grad_() for value in arguments(length))
    assert torch.autograd.gradcheck(linear_recurrence, (decay, x, initial))
    assert torch.autograd.gradgradcheck(linear_recurrence, (decay, x, initial))


def test_a_long_sequence_continues_from_where_it_was_cut() -> None:
    decay, x, initial = arguments(200)
    whole, parts = linear_recurrence(decay, x, initial), []
    for a, b in zip(decay.split([1, 64, 100, 35]), x.split([1, 64, 100, 35]), strict=True):
        parts.append(linear_recurrence(a, b, initial))
        initial = parts[-1][-1]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-12, rtol=1e-12)


def test_memory_is_linear() -> None:
    def peak(length: int) -> int:
        values = [value.requires_grad_() for value in arguments(length)]
        return peak_memory(lambda: linear_recurrence(*values).sum().backward())

    peak(64)
    assert peak(4096) < 2.1 * peak(2048)
