"""Words of subword units, against fairseq's own."""

from __future__ import annotations

import pytest
from fairseq.data import data_utils
from hypothesis import given
from hypothesis import strategies as st

from amlp_fairseq.text.subwords import joined

UNITS = st.lists(st.sampled_from(["▁Ein", "▁", "sch", "@@", "sch@@", "a@@b", "<unk>", "é"])).map(" ".join)


@pytest.mark.parametrize("segmentation", ["sentencepiece", "subword_nmt", None])
@given(units=UNITS)
def test_words_are_fairseqs(segmentation: str | None, units: str) -> None:
    assert joined(units, segmentation) == data_utils.post_process(units, segmentation)
