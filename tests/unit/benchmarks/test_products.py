"""benchmarks/products.py."""

from __future__ import annotations

import pytest

from amlp_fairseq.engine.isa import library
from benchmarks import products


@pytest.mark.parametrize("precision", ["float32", "int8", "bfloat16"])
def test_both_multiply(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends where one of them has an error that is not of rounding."""
    if not hasattr(library(), f"{precision}_linear"):
        pytest.skip("this processor has no bfloat16")
    monkeypatch.setattr(products, "SHAPES", [(40, 70)])
    monkeypatch.setattr(products, "ROWS", (3, 20))
    rows = products.measured(precision, 1)
    assert [row["rows"] for row in rows] == [3, 20]
    assert all(row["time, engine/oneDNN"] > 0 for row in rows)
