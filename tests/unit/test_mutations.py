"""The faults of tests/mutations can be applied: their text is where they look for it."""

from __future__ import annotations

import pytest
import yaml
from commands import ROOT

from tests.mutations.check import FAULTS, selection, the_file

EACH = yaml.safe_load(FAULTS.read_text(encoding="utf-8"))


def test_every_fault_has_its_place_and_its_tests() -> None:
    assert len(EACH) >= 40
    for fault in EACH:
        the_file(ROOT / "amlp_fairseq", fault["file"], fault["before"])
        assert selection(fault["tests"], ROOT)
        assert fault["before"] != fault["after"]


def test_text_that_is_not_there_is_named() -> None:
    with pytest.raises(SystemExit, match=r"0 files named softmax\.py .* have once: no such text"):
        the_file(ROOT / "amlp_fairseq", "softmax.py", "no such text")
