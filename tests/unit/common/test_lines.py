"""What fairseq-interactive reads."""

from __future__ import annotations

import sys

import pytest

from amlp_fairseq.common.lines import buffered_read


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match=r"^standard input is closed: name the text with --input FILE$"):
        next(buffered_read("-", 1))
