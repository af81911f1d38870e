"""fairseq's generator in the engine and in PyTorch."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import toy

from amlp_fairseq.ops.backend import VARIABLE
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions


def generator(directions: int = 2, models: int = 1, **options: Any) -> tuple[MultiwordBeamSearch, Any]:
    task = toy.task(20, num_directions=directions)
    made = [toy.model(task, seed) for seed in range(models)]
    chosen = SearchOptions(**{"beam_size": 3, "max_len_b": 12, **options})
    batch = toy.batch([*toy.random_sources(4, 20), []], task.src_dict)
    return MultiwordBeamSearch(made, task.tgt_dict, task.order, chosen), batch


@pytest.mark.parametrize("options", [{}, {"deduplicate_ngram_size": 2, "len_penalty": 0.6}])
def test_both_find_the_same(options: dict[str, Any]) -> None:
    """Sums of 13 log-probabilities of at most 20 in float32, after layers whose sums have some hundred terms."""
    search, batch = generator(**options)
    assert search.engine_model() is not None
    found = search.generate(search.models, batch)
    search.use_engine = False
    for hypotheses, others in zip(found, search.generate(search.models, batch), strict=True):
        assert len(hypotheses) == len(others)
        for one, other in zip(hypotheses, others, strict=True):
            assert one.keys() == other.keys()
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert one["steps"] == other["steps"]
            for name in ("score", "positional_scores"):
                assert one[name].dtype == other[name].dtype
                torch.testing.assert_close(one[name], other[name], rtol=0, atol=13 * 20 * 2**-24 * 100)


def test_the_weights_are_those_of_now() -> None:
    """A model that is being trained changes between batches."""
    search, batch = generator()
    before = search.generate(search.models, batch)[0][0]["score"]
    with torch.no_grad():
        search.models[0].decoder.output_projection.weight *= 2
    after = search.generate(search.models, batch)[0][0]["score"]
    search.use_engine = False
    assert after != before
    assert after == pytest.approx(float(search.generate(search.models, batch)[0][0]["score"]), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"models": 2}, "several models"), ({"decode_dtype": "bfloat16"}, "--decode-dtype bfloat16")],
)
def test_why_pytorch_decodes_is_said_once(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    search, batch = generator(**options)
    for _ in range(2):
        search.generate(search.models, batch)
    assert [record.message for record in caplog.records] == [f"PyTorch decodes: the engine does not have {reason}"]
    monkeypatch.setenv(VARIABLE, "torch")
    assert search.engine_model() is None
