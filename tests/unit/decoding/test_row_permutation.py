"""Row permutations in place against indexing."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amlp_fairseq.decoding.row_permutation import RowPermutation


@settings(deadline=None)
@given(origins=st.lists(st.integers(0, 6), min_size=1, max_size=7), dim=st.integers(0, 2), part=st.booleans())
def test_rows_become_what_their_origins_were(origins: list[int], dim: int, part: bool) -> None:
    """Also for views of larger tables, and for fewer rows."""
    whole = torch.randn(7, 7, 7, 4)
    table = whole[..., :3] if part else whole
    expected, rows = table.index_select(dim, torch.tensor(origins)), torch.tensor(origins)
    behind = table.narrow(dim, len(origins), 7 - len(origins)).clone()
    actual = RowPermutation(rows).apply(table, dim)
    assert torch.equal(actual, expected)
    assert actual.data_ptr() == table.data_ptr()
    assert torch.equal(table.narrow(dim, len(origins), 7 - len(origins)), behind)
