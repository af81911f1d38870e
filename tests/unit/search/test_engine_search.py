"""fairseq's generator in the engine and in PyTorch."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import tolerance
import torch
import toy

from amlp_fairseq.engine import isa
from amlp_fairseq.models.cmlmc import CMLMCConfig, CMLMCTransformerModel
from amlp_fairseq.ops.backend import VARIABLE
from amlp_fairseq.search.iterative_refinement import IterativeRefinement
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.tasks.translation_cmlmc import TranslationCMLMCConfig, TranslationCMLMCTask


def generator(directions: int = 2, models: int = 1, **options: Any) -> tuple[MultiwordBeamSearch, Any]:
    task = toy.task(20, num_directions=directions)
    made = [toy.model(task, seed) for seed in range(models)]
    chosen = SearchOptions(**{"beam_size": 3, "max_len_b": 12, **options})
    batch = toy.batch([*toy.random_sources(4, 20), []], task.src_dict)
    return MultiwordBeamSearch(made, task.tgt_dict, task.order, chosen), batch


@pytest.mark.parametrize(
    "options",
    [{}, {"deduplicate_ngram_size": 2, "len_penalty": 0.6}, {"alignment": "hard"}, {"repetition_penalty": 1.5}],
)
def test_both_find_the_same(options: dict[str, Any]) -> None:
    """Sums of 13 log-probabilities of at most 20 in float32, after layers whose sums have some hundred terms."""
    search, batch = generator(**options)
    assert search.engine_model() is not None
    found = search.generate(search.models, batch)
    search.engine_models.use_engine = False
    for hypotheses, others in zip(found, search.generate(search.models, batch), strict=True):
        assert len(hypotheses) == len(others)
        for one, other in zip(hypotheses, others, strict=True):
            assert one.keys() == other.keys()
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert one["steps"] == other["steps"]
            if options.get("alignment"):
                assert one["alignment"] == other["alignment"]
            for name in ("score", "positional_scores"):
                assert one[name].dtype == other[name].dtype
                torch.testing.assert_close(one[name], other[name], rtol=0, atol=tolerance.of_scores(13))


def test_the_weights_are_those_of_now() -> None:
    """A model that is being trained changes between batches."""
    search, batch = generator()
    before = search.generate(search.models, batch)[0][0]["score"]
    with torch.no_grad():
        search.models[0].decoder.output_projection.weight *= 2
    after = search.generate(search.models, batch)[0][0]["score"]
    search.engine_models.use_engine = False
    assert after != before
    assert after == pytest.approx(
        float(search.generate(search.models, batch)[0][0]["score"]), abs=tolerance.of_scores(13)
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"cuda_graphs": True}, "--cuda-graphs"), ({"decode_dtype": "bfloat16"}, "--decode-dtype bfloat16")],
)
def test_why_pytorch_decodes_is_said_once(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(isa.FORCED, "generic")  # which has no bfloat16
    caplog.set_level(logging.INFO)
    search, batch = generator(**options)
    for _ in range(2):
        search.generate(search.models, batch)
    assert [record.message for record in caplog.records] == [f"PyTorch decodes: the engine does not have {reason}"]
    monkeypatch.setenv(VARIABLE, "torch")
    assert search.engine_model() is None


def refinement(**options: Any) -> tuple[IterativeRefinement, Any, Any]:
    words = toy.dictionary(12)
    task = TranslationCMLMCTask(TranslationCMLMCConfig(), words, words)
    torch.manual_seed(1)
    cfg = CMLMCConfig(max_source_positions=64, max_target_positions=64, **toy.SIZES, label_smoothing=0.1)
    model = toy.sharpen(CMLMCTransformerModel.build_model(cfg, task), 3.0)
    sources = [[words.bos(), *source] for source in toy.random_sources(5, 12)]
    return IterativeRefinement(words, **{"max_iter": 3, "beam_size": 2, **options}), model, toy.batch(sources, words)


def test_both_refine_to_the_same() -> None:
    """Sums of at most 20 log-probabilities of at most 20, as above."""
    search, model, batch = refinement()
    assert search.engine_model([model]) is not None
    found = search.generate([model], batch)
    search.engine_models.use_engine = False
    for (one,), (other,) in zip(found, search.generate([model], batch), strict=True):
        assert one.keys() == other.keys()
        assert one["tokens"].tolist() == other["tokens"].tolist()
        assert one["steps"] == other["steps"]
        for name in ("score", "positional_scores"):
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=tolerance.of_scores(20))


def test_why_pytorch_refines_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    search, model, batch = refinement(retain_history=True)
    assert "history" in search.generate([model], batch)[0][0]
    assert "the engine does not have --retain-iter-history" in caplog.text
