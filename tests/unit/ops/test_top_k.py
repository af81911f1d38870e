"""The largest entries of long rows, against PyTorch's topk."""

from __future__ import annotations

import pytest
import torch
from pairwise import pairwise

from amlp_fairseq.ops.top_k import BLOCK, SMALL, top_k

#: Of 40 blocks and more, enough to be looked at by blocks.
ROWS = SMALL // (40 * BLOCK) + 1


@pytest.mark.parametrize(
    ("shape", "size", "k"),
    pairwise([(), (3,), (2, 4)], [21, BLOCK, 5 * BLOCK, 30 * BLOCK, 30 * BLOCK + 1, 31 * BLOCK - 1], [1, 3, 20]),
)
def test_it_is_topk(shape: tuple[int, ...], size: int, k: int) -> None:
    count = size * torch.Size(shape).numel()
    table = torch.randperm(count, generator=torch.Generator().manual_seed(size)).float().view(*shape, size)
    values, places = top_k(table, k)
    expected = table.topk(k, dim=-1)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)


def test_the_last_entries_are_found() -> None:
    table = torch.zeros(ROWS, 40 * BLOCK + 7)
    table[:, -3:] = torch.tensor([2.0, 4.0, 3.0])
    assert top_k(table, 3)[1].tolist() == ROWS * [[40 * BLOCK + 5, 40 * BLOCK + 6, 40 * BLOCK + 4]]


def test_equal_and_infinite_entries() -> None:
    table = torch.full((ROWS, 40 * BLOCK), -torch.inf)
    table[0, 100:103] = 1.0
    values, places = top_k(table, 5)
    assert values[0].tolist() == [1.0, 1.0, 1.0, -torch.inf, -torch.inf]
    assert set(places[0, :3].tolist()) == {100, 101, 102}
    assert torch.equal(table.gather(1, places), values)
    assert len(set(places[1].tolist())) == 5


def test_what_is_not_a_number_comes_first() -> None:
    table = torch.zeros(ROWS, 40 * BLOCK)
    table[:, 77] = torch.nan
    values, places = top_k(table, 1)
    assert values.isnan().all()
    assert places.flatten().tolist() == ROWS * [77]
