"""Names of numpy that fairseq uses."""

from __future__ import annotations

import numpy as np
import pytest
from fairseq.data import data_utils

import amlp_fairseq.plugin  # noqa: F401  (restores them)


def test_numpy_names_that_fairseq_uses() -> None:
    assert np.zeros(1, dtype=np.float).dtype == np.float64
    assert np.array([1.7]).astype(np.int).tolist() == [1]
    assert np.vectorize(lambda x: x + 1, otypes=[np.compat.long])([1, 2]).tolist() == [2, 3]


@pytest.mark.parametrize(("method", "expected"), [("lower", 2), ("higher", 3), ("linear", 2.5), ("midpoint", 2.5)])
def test_percentile_takes_both_spellings(method: str, expected: float) -> None:
    assert np.percentile([4, 1, 3, 2], 50, interpolation=method) == expected
    assert np.percentile([4, 1, 3, 2], 50, method=method) == expected


def test_percentile_is_otherwise_numpys() -> None:
    table = np.array([[1.0, 2.0, 9.0], [4.0, 6.0, 5.0]])
    assert np.percentile(table, 50) == 4.5
    np.testing.assert_array_equal(np.percentile(table, 50, axis=1, keepdims=True), [[2], [5]])
    np.testing.assert_array_equal(np.percentile(table, [0, 100], 0), [[1, 2, 5], [4, 6, 9]])


def test_fairseq_finds_length_buckets() -> None:
    assert data_utils.get_buckets(np.array([1, 2, 3, 4, 5, 9]), 2).tolist() == [3, 9]
