"""Every option of fairseq's search, for models that write from left to right: in the plugin's search, or in fairseq's
own. The words are those of stock fairseq."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import toy
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from amlp_fairseq.compat.internals import GenerationConfig

WORDS = 30
PREFIXES = [None, torch.tensor([[5, 6, 7], [7, 1, 1], [8, 9, 1], [5, 5, 5], [6, 2, 1], [9, 3, 4]])]


def made(models: int = 1, directions: int = 1, **options: Any) -> tuple[Any, list[Any], Any]:
    task = toy.task(WORDS, num_directions=directions, **options)
    batch = toy.batch(toy.random_sources(6, WORDS), task.source_dictionary)
    return task, [toy.model(task, seed=seed, sharpness=2.0) for seed in range(models)], batch


def same(found: list[list[Any]], expected: list[list[Any]], tolerance: float = 21 * 20 * 2**-24 * 100) -> None:
    """Sums of at most 21 log-probabilities up to 20 in float32, after layers whose sums have some hundred terms. After
    a prefix with an end symbol stock fairseq repeats the one hypothesis."""
    for hypotheses, others in zip(found, expected, strict=True):
        assert len(hypotheses) in (len(others), len({tuple(each["tokens"].tolist()) for each in others}))
        for one, other in zip(hypotheses, others, strict=False):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert float(one["score"]) == pytest.approx(float(other["score"]), abs=tolerance)


@pytest.mark.parametrize("prefix", PREFIXES, ids=["free", "prefix"])
@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("beam", [1, 3])
def test_ensembles_and_prefixes_in_the_engine(models: int, prefix: torch.Tensor | None, beam: int) -> None:
    task, networks, batch = made(models)
    size = 0 if prefix is None else prefix.size(1)
    ours = task.build_generator(networks, GenerationConfig(beam=beam, max_len_b=20, prefix_size=size))
    stock = SequenceGenerator(networks, task.target_dictionary, beam_size=beam, max_len_b=20)
    assert ours.engine_model() is not None
    same(*(each.generate(networks, batch, prefix_tokens=prefix) for each in (ours, stock)))


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": True},
        {"sampling": True, "sampling_topk": 3, "temperature": 1.5},
        {"sampling": True, "sampling_topp": 0.7},
        {"diverse_beam_groups": 2, "diverse_beam_strength": 0.8},
        {"diversity_rate": 0.5},
        {"match_source_len": True},
        {"match_source_len": True, "no_repeat_ngram_size": 2, "lenpen": 0.5},
        {"score_reference": True},
    ],
    ids=str,
)
def test_options_of_fairseqs_own_search(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """The log says so."""
    caplog.set_level(logging.INFO)
    task, networks, batch = made(2)
    args = GenerationConfig(beam=4, max_len_b=20, **options)
    stock_task = TranslationTask(TranslationConfig(), task.source_dictionary, task.target_dictionary)
    batch["target"] = torch.full((6, 3), 5)
    batch["net_input"]["prev_output_tokens"] = torch.full((6, 3), 2)
    found = []
    for each in (task, stock_task):
        torch.manual_seed(1)
        found.append(each.inference_step(each.build_generator(networks, args), networks, batch))
    assert "fairseq's own search decodes" in caplog.text
    assert f"--{next(iter(options)).replace('_', '-')}" in caplog.text
    for hypotheses, others in zip(*found, strict=True):
        for one, other in zip(hypotheses, others, strict=True):
            assert one["tokens"].tolist() == other["tokens"].tolist()
            assert float(one["score"]) == float(other["score"])


def test_constraints_and_language_models_reach_fairseqs_search(monkeypatch: pytest.MonkeyPatch) -> None:
    task, networks, _ = made()
    assert type(task.build_generator(networks, GenerationConfig(constraints="ordered")).search).__name__ == (
        "LexicallyConstrainedBeamSearch"
    )
    language_model = {"lm_model": networks[0], "lm_weight": 0.2}
    made_with = task.build_generator(networks, GenerationConfig(lm_path="lm.pt"), extra_gen_cls_kwargs=language_model)
    assert (made_with.lm_model, made_with.lm_weight) == (networks[0], 0.2)
    with_function = task.build_generator(networks, GenerationConfig(), prefix_allowed_tokens_fn=lambda *_: [5])
    assert type(with_function.search).__name__ == "PrefixConstrainedBeamSearch"


def test_a_prefix_without_the_engine_is_fairseqs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    task, networks, batch = made()
    task.use_engine = False
    generator = task.build_generator(networks, GenerationConfig(beam=3, max_len_b=20, prefix_size=3))
    assert isinstance(generator, SequenceGenerator)
    assert "--prefix-size 3" in caplog.text
    stock = SequenceGenerator(networks, task.target_dictionary, beam_size=3, max_len_b=20)
    same(*(each.generate(networks, batch, prefix_tokens=PREFIXES[1]) for each in (generator, stock)), tolerance=0)


@pytest.mark.parametrize(
    ("options", "name"), [({"sampling": True}, "--sampling"), ({"prefix_size": 2}, "--prefix-size 2")]
)
def test_other_orders_refuse_them_by_name(options: dict[str, Any], name: str) -> None:
    task, networks, _ = made(directions=2)
    with pytest.raises(ValueError, match=f"^{name}.*left to right"):
        task.build_generator(networks, GenerationConfig(**options))


def test_options_of_both_searches_are_refused_together() -> None:
    task, networks, _ = made(length_penalty="gnmt", draft="source")
    with pytest.raises(ValueError, match=r"^--diverse-beam-groups 2 .*--length-penalty, --draft"):
        task.build_generator(networks, GenerationConfig(diverse_beam_groups=2, beam=2))
