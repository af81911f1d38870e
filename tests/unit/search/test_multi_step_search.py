"""Beam search with several steps in one call of C++, against the same search step by step, which other tests compare
with fairseq's search and with brute force."""

from __future__ import annotations

from typing import Any

import pytest
import toy
from pairwise import pairwise

from amlp_fairseq.decoding import step_decoder
from amlp_fairseq.decoding.step_decoder import Decoding
from amlp_fairseq.search import multiword_beam_search as module
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions

pytestmark = pytest.mark.parametrize("operators", ["C++"], indirect=True, scope="module")

LONG = {"max_source_positions": 64, "max_target_positions": 200}


def translate(task: Any, model: Any, sources: list[list[int]], **options: Any) -> list[Any]:
    """All hypotheses with their scores, exactly, and the decoder calls."""
    search = MultiwordBeamSearch([model], task.tgt_dict, task.order, SearchOptions(**options), use_engine=False)
    return [
        [
            (each["tokens"].tolist(), float(each["score"]), each["positional_scores"].tolist(), each["steps"])
            for each in hypotheses
        ]
        for hypotheses in search.generate([model], toy.batch(sources, task.src_dict))
    ]


@pytest.fixture
def calls(operators: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of steps of the calls of C++, with a 0 for each step from Python."""
    made: list[int] = []
    search, step = Decoding.search, Decoding.step

    def recorded_search(self: Decoding, *arguments: Any) -> Any:
        before = self.length
        actual = search(self, *arguments)
        made.append((self.length - before) // self.decoder.words_per_step)
        return actual

    def recorded_step(self: Decoding, *arguments: Any) -> Any:
        made.append(0)
        return step(self, *arguments)

    monkeypatch.setattr(Decoding, "search", recorded_search)
    monkeypatch.setattr(Decoding, "step", recorded_step)
    return made


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module._Search, "_multi_step_decoding", lambda self: None)


@pytest.mark.parametrize(
    ("order", "beam", "decode_dtype"), pairwise([(1, 1), (2, 1), (2, 2), (1, 3), (4, 0)], [1, 4], [None, "int8"])
)
def test_both_find_the_same(
    order: tuple[int, int], beam: int, decode_dtype: str | None, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches with padded sources, limits that some outputs reach, and words after the end symbol."""
    task = toy.task(9, num_directions=order[0], words_per_direction=order[1])
    sources = toy.random_sources(5, 9, seed=1)
    options: dict[str, Any] = {"beam_size": beam, "max_len_b": 9, "decode_dtype": decode_dtype}
    variants: list[dict[str, Any]] = [
        {},
        {"min_len": 5},
        {"words_after_end": "count", "max_len_b": 30},
        {"normalize_scores": False},
        {"finished": "all"},
    ]
    models = [toy.model(task, seed=seed, decoder_normalize_before=seed == 1) for seed in range(2)]
    cases = [(model, options | variant) for model in models for variant in variants]
    actual = [translate(task, model, sources, **options) for model, options in cases]
    assert max(calls) > 1  # some calls made several steps
    before = len(calls)
    one_by_one(monkeypatch)
    assert actual == [translate(task, model, sources, **options) for model, options in cases]
    assert not any(calls[before:])


@pytest.mark.parametrize(
    ("attention", "order", "beam", "decode_dtype"),
    pairwise(["average", "dynamic_conv", "light_conv"], [(1, 1), (2, 1), (1, 3)], [1, 4], [None, "int8"]),
)
def test_other_self_attentions(
    attention: str,
    order: tuple[int, int],
    beam: int,
    decode_dtype: str | None,
    calls: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Equal results of both, and in float32 also of layers called from Python."""
    task = toy.task(9, num_directions=order[0], words_per_direction=order[1])
    model = toy.model(task, decoder_self_attention_type=attention, decoder_kernel_size_list=[2, 5])
    sources = toy.random_sources(5, 9, seed=1)
    options: dict[str, Any] = {"beam_size": beam, "max_len_b": 30, "decode_dtype": decode_dtype}
    actual = translate(task, model, sources, **options)
    assert max(calls) > 0
    one_by_one(monkeypatch)
    assert actual == translate(task, model, sources, **options)
    if decode_dtype is None:
        monkeypatch.setattr(step_decoder, "decoder_layers", lambda layers: None)
        expected = translate(task, model, sources, **options)
        assert [[each[0] for each in hypotheses] for hypotheses in actual] == [
            [each[0] for each in hypotheses] for hypotheses in expected
        ]


@pytest.mark.parametrize("beam", [1, 2])
def test_a_sentence_is_one_call(beam: int, calls: list[int]) -> None:
    """Unless the sentence reaches its limit."""
    task = toy.task(9, num_directions=1)
    model, limit, ended = toy.model(task, seed=1), 60, 0
    for source in toy.random_sources(5, 9, seed=1):
        calls.clear()
        (hypotheses,) = translate(task, model, [source], beam_size=beam, max_len_b=limit)
        last = max(steps for *_, steps in hypotheses)
        if last <= limit:
            ended += 1
            assert calls == [last]
    assert ended > 0


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_that_are_longer_than_the_buffers(beam: int, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy.task(9, num_directions=2)
    model, sources = toy.model(task, **LONG), toy.random_sources(3, 9, seed=1)
    options = {"beam_size": beam, "min_len": 150, "max_len_b": 170}
    actual = translate(task, model, sources, **options)
    assert {len(hypotheses[0][0]) > 150 for hypotheses in actual} == {True}
    assert len([made for made in calls if made > 1]) > 2
    one_by_one(monkeypatch)
    assert actual == translate(task, model, sources, **options)


@pytest.mark.parametrize(
    "options",
    [{"unk_penalty": 1.0}, {"temperature": 2.0}, {"alignment": "hard"}, {"no_repeat_ngram_size": 2}],
)
def test_what_other_options_need_is_done_from_python(options: dict[str, Any], calls: list[int]) -> None:
    task = toy.task(9, num_directions=2)
    translate(task, toy.model(task), toy.random_sources(2, 9), max_len_b=9, **options)
    assert {*calls} == {0}
