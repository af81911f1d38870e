"""Samples for dropout, against the distribution that they are of and PyTorch's own."""

import pytest
import torch
from torch.nn import functional as F

from amlp_fairseq.ops.bernoulli import bernoulli_, faster_bernoulli


@pytest.mark.parametrize(
    ("p", "dtype"),
    [(0.0, torch.float32), (0.1, torch.float32), (0.5, torch.bfloat16), (0.9, torch.float64), (1.0, torch.bfloat16)],
)
def test_as_many_ones_as_p_says(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    drawn = bernoulli_(torch.empty(1001, 999, dtype=dtype), p).double()
    assert set(drawn.unique().tolist()) <= {0.0, 1.0}
    deviation = (p * (1 - p) / drawn.numel()) ** 0.5
    assert abs(drawn.mean().item() - p) <= 5 * deviation + 0.5 / 65536


def test_samples_are_independent_of_their_neighbours() -> None:
    torch.manual_seed(2)
    drawn = bernoulli_(torch.empty(1_000_000), 0.3) - 0.3
    for lag in (1, 2, 3, 4, 8, 128):
        assert abs((drawn[lag:] * drawn[:-lag]).mean().item()) < 5 * 0.21 / 1000


@pytest.mark.parametrize("shape", [(0,), (), (1,), (3, 5), (2, 0, 3)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    assert torch.equal(bernoulli_(torch.empty(shape), 1.0), torch.ones(shape))


def test_a_view_is_filled_and_nothing_around_it() -> None:
    whole = torch.full((4, 6), 7.0)
    bernoulli_(whole[:, ::2].t(), 1.0)
    assert torch.equal(whole, torch.tensor([1.0, 7.0] * 3).expand(4, 6))


def test_the_seed_decides() -> None:
    def drawn() -> torch.Tensor:
        return bernoulli_(torch.empty(1000), 0.5)

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(drawn(), first)
    assert torch.equal(drawn(), second)
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(bernoulli_(torch.empty(1000), 0.5, generator=generator), first)


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_not_a_probability(p: float) -> None:
    with pytest.raises(ValueError, match=r"p .*: choose a probability, from 0 to 1"):
        bernoulli_(torch.empty(2), p)


def test_dropout_samples_so_and_then_as_before() -> None:
    values = torch.ones(1000, requires_grad=True)
    torch.manual_seed(4)
    stock = F.dropout(values, 0.25)
    torch.manual_seed(4)
    kept = bernoulli_(torch.empty(1000), 0.75)
    torch.manual_seed(4)
    with faster_bernoulli():
        dropped = F.dropout(values, 0.25)
    assert torch.equal(dropped, kept / 0.75)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped)
    torch.manual_seed(4)
    assert torch.equal(F.dropout(values, 0.25), stock)
