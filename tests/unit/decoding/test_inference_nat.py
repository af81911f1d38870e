"""Iterative refinement with inference models against the original models."""

from __future__ import annotations

from typing import Any

import pytest
import tolerance
import torch
import toy

from amlp_fairseq.attention.registry import supporting
from amlp_fairseq.decoding.inference_nat import inference_nat
from amlp_fairseq.search import iterative_refinement
from amlp_fairseq.search.iterative_refinement import IterativeRefinement

WORDS = toy.dictionary(12)
CROSS = supporting("noncausal cross")
#: Seeds of random models whose sentences are not all finished in the same iteration; 1 by default.
SEEDS = {"concat": 5, "general": 5, "local_p": 5}


def sample(seed: int = 0) -> dict[str, Any]:
    sources = toy.random_sources(5, 12, seed)
    return toy.batch([[WORDS.bos(), *words] for words in sources], WORDS)


def found(models: list[Any], batch: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    search = IterativeRefinement(WORDS, use_engine=False, max_iter=20, beam_size=3, **options)
    return [hypothesis for (hypothesis,) in search.generate(models, batch)]


@pytest.mark.parametrize("cross", CROSS)
def test_it_is_the_models_own_refinement(cross: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy.cmlmc(SEEDS.get(cross, 1), decoder_cross_attention_type=cross, decoder_kernel_size_list=[3])
    prepared = found([model], sample())
    monkeypatch.setattr(iterative_refinement, "inference_nat", lambda model, *options: model)
    plain = found([model], sample())
    assert len({hypothesis["steps"] for hypothesis in plain}) > 1  # sentences leave one by one
    for mine, other in zip(prepared, plain, strict=True):
        assert mine["tokens"].tolist() == other["tokens"].tolist()
        assert mine["steps"] == other["steps"]
        torch.testing.assert_close(
            mine["positional_scores"], other["positional_scores"], atol=tolerance.of_scores(), rtol=0
        )


def test_another_source_of_the_same_shape_is_read_anew() -> None:
    model = toy.cmlmc()
    model.make_generation_fast_()
    search = IterativeRefinement(WORDS, use_engine=False, max_iter=2)
    first = search.generate([model], sample(0))
    search.generate([model], sample(1))
    again = search.generate([model], sample(0))
    fresh = IterativeRefinement(WORDS, use_engine=False, max_iter=2).generate([model], sample(1))
    assert [h["tokens"].tolist() for (h,) in first] == [h["tokens"].tolist() for (h,) in again]
    assert [h["tokens"].tolist() for (h,) in first] != [h["tokens"].tolist() for (h,) in fresh]


def test_a_model_in_training_is_read_with_its_weights_of_now() -> None:
    model, search = toy.cmlmc(), IterativeRefinement(WORDS, use_engine=False, max_iter=2)
    before = search.generate([model], sample())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.mul_(1.5)
    after = [float(h["score"]) for (h,) in search.generate([model], sample())]
    fresh = IterativeRefinement(WORDS, use_engine=False, max_iter=2).generate([model], sample())
    assert after == [float(h["score"]) for (h,) in fresh]
    assert after != [float(h["score"]) for (h,) in before]


def test_other_models_are_made_ready_anew() -> None:
    first, second = toy.cmlmc(seed=1), toy.cmlmc(seed=2)
    for model in (first, second):
        model.make_generation_fast_()
    search, models, outputs = IterativeRefinement(WORDS, use_engine=False, max_iter=2), [], []
    for models[:] in ([first], [first, second], [second], [first]):  # always the same list
        found = [h["tokens"].tolist() for (h,) in search.generate(models, sample())]
        fresh = IterativeRefinement(WORDS, use_engine=False, max_iter=2).generate(models, sample())
        assert found == [h["tokens"].tolist() for (h,) in fresh]
        outputs.append(found)
    assert outputs[0] == outputs[3]
    assert outputs[0] != outputs[1] != outputs[2] != outputs[0]


@pytest.mark.parametrize(("decode_dtype", "tolerance"), [("bfloat16", 0.05), ("int8", 0.1)])
def test_other_types_stay_near(decode_dtype: str, tolerance: float) -> None:
    model, batch = toy.cmlmc(), sample()["net_input"]
    tokens = torch.full((5, 6), WORDS.unk())

    def logits(network: Any) -> torch.Tensor:
        encoded = network.forward_encoder([batch["src_tokens"], batch["src_lengths"]])
        return network.decoder(normalize=False, prev_output_tokens=tokens, encoder_out=encoded)

    with torch.no_grad():
        expected, near = logits(model), logits(inference_nat(model, decode_dtype))
    assert 0 < (near - expected).abs().max() < tolerance * expected.abs().max()
    with pytest.raises(ValueError, match="--decode-dtype float16 is not for cpu"):
        inference_nat(model, "float16")
