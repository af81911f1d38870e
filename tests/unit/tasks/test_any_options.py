"""Any set of fairseq's generation options, for models that write from left to right: stock fairseq's words, or one line
that names an option."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import toy
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from hypothesis import given, settings
from hypothesis import strategies as st

from amlp_fairseq.compat.internals import GenerationConfig

WORDS = 14
#: As far as sums of 13 log-probabilities up to 20 agree, after layers whose sums have some hundred terms.
TOLERANCE = 13 * 20 * 2**-24 * 100
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "beam": st.integers(0, 5),
    "max_len_a": st.sampled_from([0.0, 0.5, 2.0]),
    "max_len_b": st.integers(0, 8),
    "min_len": st.integers(0, 5),
    "unnormalized": st.booleans(),
    "lenpen": st.sampled_from([-1.0, 0.0, 0.6, 2.0]),
    "unkpen": st.sampled_from([-3.0, 0.5, float("inf")]),
    "temperature": st.sampled_from([0.0, 0.5, 1.7]),
    "no_repeat_ngram_size": st.sampled_from([0, 2, 3]),
    "match_source_len": st.booleans(),
    "no_early_stop": st.booleans(),
    "sampling": st.booleans(),
    "sampling_topk": st.sampled_from([0, 1, 3, 50]),
    "sampling_topp": st.sampled_from([0.3, 0.9, 1.0]),
    "diverse_beam_groups": st.integers(0, 3),
    "diverse_beam_strength": st.sampled_from([0.0, 0.5, 2.0]),
    "diversity_rate": st.sampled_from([0.0, 0.5]),
    "print_alignment": st.sampled_from(["hard", "soft"]),
    "replace_unk": st.just(""),
    "score_reference": st.booleans(),
    "prefix_size": st.integers(0, 3),
    "iter_decode_max_iter": st.integers(0, 2),
    "retain_iter_history": st.booleans(),
    "retain_dropout": st.booleans(),
    "lm_weight": st.sampled_from([0.0, 0.3]),
}


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Not many at a time: most would be of one line."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True))
    return {"beam": 3, "max_len_b": 8} | {name: draw(VALUES[name]) for name in names}


@cache
def tasks() -> tuple[Any, TranslationTask]:
    task = toy.task(WORDS, num_directions=1)
    return task, TranslationTask(TranslationConfig(), task.source_dictionary, task.target_dictionary)


@cache
def networks(kind: str, count: int) -> list[Any]:
    """Models of the plugin or of fairseq."""
    if kind == "stock":
        return [toy.stock_transformer(tasks()[0], seed=seed, sharpness=2.0) for seed in range(count)]
    return [toy.model(tasks()[0], seed=seed, sharpness=2.0, dropout=0.1) for seed in range(count)]


def found(task: Any, models: list[Any], chosen: dict[str, Any], source: list[int]) -> list[dict[str, Any]]:
    generator = task.build_generator(models, GenerationConfig(**chosen))
    batch = toy.batch([source], task.source_dictionary)
    batch["target"] = torch.tensor([[6, 7, 8, 2]])
    batch["net_input"]["prev_output_tokens"] = torch.tensor([[2, 6, 7, 8]])
    size = chosen.get("prefix_size", 0)
    torch.manual_seed(1)
    prefix = batch["target"][:, :size] if size > 0 else None
    (hypotheses,) = task.inference_step(generator, models, batch, prefix_tokens=prefix)
    return [each for each in hypotheses if each["score"] > -torch.inf]


@given(
    chosen=options(),
    kind=st.sampled_from(["plugin", "stock"]),
    count=st.integers(1, 2),
    source=st.sampled_from([[4], [9, 5, 5, 11], [3, 6, 17]]),
)
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
def test_the_words_of_stock_fairseq_or_a_line(chosen: dict[str, Any], kind: str, count: int, source: list[int]) -> None:
    ours, stock = tasks()
    try:
        hypotheses = found(ours, networks(kind, count), chosen, source)
    except ValueError as error:
        text = str(error)
        assert "\n" not in text
        assert any(f"--{name.replace('_', '-')}" in text for name in chosen), text
        return
    expected = found(stock, networks(kind, count), chosen, source)
    unique = {tuple(each["tokens"].tolist()): each for each in reversed(expected)}  # after a prefix one may stand twice
    assert len(hypotheses) in (len(expected), len(unique))
    for one, other in zip(hypotheses, expected, strict=False):
        score = float(other["score"])
        assert float(one["score"]) == pytest.approx(score, abs=TOLERANCE)
        gaps = [abs(float(each["score"]) - score) for each in expected if each is not other]
        if min(gaps, default=1.0) > 2 * TOLERANCE:
            assert one["tokens"].tolist() == other["tokens"].tolist()
