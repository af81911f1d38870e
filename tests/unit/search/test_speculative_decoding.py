"""Speculative decoding with any draft against greedy search."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy

from amlp_fairseq.search.drafts import SentenceDraft, SourceDrafter, TranslationMemoryDrafter
from amlp_fairseq.search.model_drafter import ModelDrafter
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.speculative_decoding import SpeculativeDecoding

EOS = 2
TASK = toy.task(num_directions=1)


class Fixed:
    """A draft for each sentence of a batch that has words."""

    def __init__(self, drafts: Sequence[list[int]]) -> None:
        self.drafts = drafts

    def begin(self, sources: Sequence[Sequence[int]]) -> list[SentenceDraft]:
        return [SentenceDraft(draft) for _, draft in zip(sources, self.drafts, strict=True)]


class Liar:
    """Proposes new words in each call, end symbols and padding among them."""

    def begin(self, sources: Sequence[Sequence[int]]) -> list[Liar]:
        return [self for _ in sources]

    def propose(self, words: list[int], count: int) -> list[int]:
        return [(len(words) * 7 + position) % 16 for position in range(count)]


def greedy(model: Any, sample: dict, **options: Any) -> list[dict[str, Any]]:
    chosen = SearchOptions(**{"beam_size": 1, "max_len_b": 14, **options})
    return [
        actual[0]
        for actual in MultiwordBeamSearch([model], TASK.tgt_dict, TASK.order, chosen, use_engine=False).generate(
            None, sample
        )
    ]


def verified(model: Any, sample: dict, drafter: Any, words: int, **options: Any) -> list[dict[str, Any]]:
    chosen = SearchOptions(**{"beam_size": 1, "max_len_b": 14, **options})
    search = SpeculativeDecoding([model], TASK.tgt_dict, TASK.order, chosen, drafter, words, use_engine=False)
    return [actual[0] for actual in search.generate(None, sample)]


def drafts(kind: str, expected: list[dict[str, Any]]) -> Any:
    chance = random.Random(0)
    right = [each["tokens"].tolist()[:-1] for each in expected]
    if kind == "oracle":
        return Fixed(right)
    if kind == "empty":
        return Fixed([[] for _ in right])
    if kind == "random":
        return Fixed([[chance.randrange(4, 16) for _ in words] for words in right])
    if kind == "one wrong":
        return Fixed([[*words[:2], 5, *words[3:]] for words in right])
    if kind == "too long":
        return Fixed([words + words for words in right])
    return Liar()


KINDS = ("oracle", "empty", "random", "one wrong", "too long", "liar")
OPTIONS: list[dict[str, Any]] = [
    {},
    {"min_len": 5, "unk_penalty": 1.0},
    {"no_repeat_ngram_size": 2, "min_len": 0},
    {"max_len_a": 0.5, "max_len_b": 3, "temperature": 0.5},
    {"alignment": "hard", "len_penalty": 0.6, "length_penalty_kind": "gnmt"},
    {"alignment": "soft", "normalize_scores": False, "deduplicate_ngram_size": 2},
]


def same(actual: dict[str, Any], expected: dict[str, Any], tolerance: float) -> None:
    assert actual["tokens"].tolist() == expected["tokens"].tolist()
    for name in ("score", "positional_scores"):
        torch.testing.assert_close(actual[name], expected[name], rtol=0, atol=tolerance)
    assert len(actual["alignment"]) == len(expected["alignment"])
    if len(expected["alignment"]):
        numbers = (np.asarray(each["alignment"], dtype=float) for each in (actual, expected))
        np.testing.assert_allclose(*numbers, atol=max(tolerance, 1e-5))  # printed with 6 digits
    if expected["attention"] is not None:
        torch.testing.assert_close(actual["attention"], expected["attention"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(options) or "defaults")
@pytest.mark.parametrize("kind", KINDS)
def test_the_words_scores_and_alignments_are_those_of_greedy_search(kind: str, options: dict[str, Any]) -> None:
    for seed in range(2):
        model = toy.model(TASK, seed).double()
        sample = toy.batch(toy.random_sources(5, 12, seed), TASK.src_dict)
        expected = greedy(model, sample, **options)
        for words in (1, 3):
            actual = verified(model, sample, drafts(kind, expected), words, **options)
            for one, other in zip(actual, expected, strict=True):
                same(one, other, 1e-6)
                if "deduplicate_ngram_size" not in options:
                    count = len(other["tokens"])
                    assert one["steps"] <= count
                    if kind == "oracle":
                        assert one["steps"] == math.ceil(count / (words + 1))
                    if kind == "empty":
                        assert one["steps"] == count


def test_in_float32_only_near_ties_may_differ() -> None:
    compared = 0
    for seed in range(20):
        model = toy.model(TASK, seed)
        sample = toy.batch(toy.random_sources(6, 12, seed), TASK.src_dict)
        expected = greedy(model, sample)
        for one, other in zip(verified(model, sample, drafts("one wrong", expected), 8), expected, strict=True):
            compared += 1
            if one["tokens"].tolist() != other["tokens"].tolist():
                pairs = zip(one["positional_scores"].tolist(), other["positional_scores"].tolist(), strict=False)
                tokens = zip(one["tokens"].tolist(), other["tokens"].tolist(), strict=False)
                first = next(position for position, (mine, theirs) in enumerate(tokens) if mine != theirs)
                mine, theirs = list(pairs)[first]
                assert abs(mine - theirs) < 1e-4
    assert compared == 120


def test_in_int8_the_words_do_not_depend_on_how_many_are_checked() -> None:
    """Last bits of attention do, which may change the int8 value of an activation."""
    for seed in range(5):
        model = toy.model(TASK, seed)
        sample = toy.batch(toy.random_sources(6, 12, seed), TASK.src_dict)
        expected = greedy(model, sample, decode_dtype="int8")
        for words in (1, 4, 11):
            actual = verified(model, sample, drafts("oracle", expected), words, decode_dtype="int8")
            for one, other in zip(actual, expected, strict=True):
                same(one, other, 0.1)  # as test_invariance.py has it


def test_an_empty_source_gets_an_empty_output() -> None:
    sample = toy.batch([[4, 5], []], TASK.src_dict)
    actual = verified(toy.model(TASK), sample, Fixed([[4]]), 2)
    assert actual[1]["tokens"].tolist() == [EOS]
    assert actual[1]["steps"] == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [({"beam_size": 4}, "--beam 4: give --beam 1"), ({"cuda_graphs": True}, "--cuda-graphs")],
)
def test_what_has_no_drafts_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    chosen = SearchOptions(**{"beam_size": 1, **options})
    with pytest.raises(ValueError, match=named):
        SpeculativeDecoding([toy.model(TASK)], TASK.tgt_dict, TASK.order, chosen, Liar(), 8)


def test_several_models_other_orders_and_no_words_are_refused_by_name() -> None:
    model, chosen = toy.model(TASK), SearchOptions(beam_size=1)
    with pytest.raises(ValueError, match="2 models in --path"):
        SpeculativeDecoding([model, model], TASK.tgt_dict, TASK.order, chosen, Liar(), 8)
    with pytest.raises(ValueError, match="not autoregressive"):
        SpeculativeDecoding([model], TASK.tgt_dict, toy.task().order, chosen, Liar(), 8)
    with pytest.raises(ValueError, match="--draft-words must be at least 1, not 0"):
        SpeculativeDecoding([model], TASK.tgt_dict, TASK.order, chosen, Liar(), 0)


def test_a_sentence_is_read_on_behind_the_last_words() -> None:
    draft = SentenceDraft([4, 5, 6, 7, 8, 5, 9])
    assert draft.propose([], 3) == [4, 5, 6]
    assert draft.propose([4], 2) == [5, 6]
    assert draft.propose([4, 11], 3) == [6, 7, 8]  # instead of 5
    assert draft.propose([4, 11, 7], 9) == [8, 5, 9]  # 6 left out
    assert draft.propose([4, 11, 7, 8, 5], 9) == [9]
    assert draft.propose([4, 11, 7, 8, 5, 4, 5], 2) == [6, 7]  # once more from the start: the last two words
    assert draft.propose([4, 11, 7, 8, 5, 4, 5, 9, 10], 2) == []


def test_the_source_is_copied_in_the_words_of_the_target() -> None:
    source, target = toy.dictionary(4), toy.dictionary(0)
    target.add_symbol("w2")
    target.add_symbol("w0")
    drafter = SourceDrafter(source.symbols, target.symbols)
    words = [source.index(name) for name in ("w0", "w1", "w2")]
    (draft,) = drafter.begin([[*words, source.eos()]])
    assert draft.propose([], 8) == [target.index("w0"), target.unk(), target.index("w2")]


def test_a_memory_goes_on_as_its_line_does(tmp_path: Path) -> None:
    file = tmp_path / "memory"
    file.write_text("w0 w1 w2 w3\nw4 w1 w5\n", encoding="utf-8")
    w = [TASK.tgt_dict.index(f"w{number}") for number in range(9)]
    memory = TranslationMemoryDrafter(file, TASK.tgt_dict.symbols)

    def proposed(*history: list[int]) -> list[int]:
        (draft,) = memory.begin([[4, EOS]])
        return [draft.propose(words, 3) for words in history][-1]

    assert proposed([]) == w[0:3]
    assert proposed([], [w[4]]) == [w[1], w[5], EOS]
    assert proposed([w[8], w[1]]) == [*w[2:4], EOS]
    assert proposed([w[4], w[1]]) == [w[5], EOS]
    assert proposed([w[8]]) == []
    assert proposed([w[0]], [w[0], w[1], w[2]]) == [w[3], EOS, w[4]]


def test_a_memory_without_lines_proposes_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("")
    (draft,) = TranslationMemoryDrafter(tmp_path / "memory", TASK.tgt_dict.symbols).begin([[4, EOS]])
    assert draft.propose([], 3) in ([], [EOS])
    with pytest.raises(ValueError, match=r"--draft-file .*missing cannot be read"):
        TranslationMemoryDrafter(tmp_path / "missing", TASK.tgt_dict.symbols)


def test_a_model_drafts_what_it_would_translate() -> None:
    task = toy.task(num_directions=2)
    drafting, model = toy.model(task, 3).double(), toy.model(TASK, 3).double()
    sources = toy.random_sources(6, 12)
    sample = toy.batch(sources, TASK.src_dict)
    search = MultiwordBeamSearch([drafting], task.tgt_dict, task.order, SearchOptions(beam_size=1, max_len_b=14))
    expected = [actual[0]["tokens"].tolist()[:-1] for actual in search.generate(None, sample)]
    drafter = ModelDrafter(task, drafting, search)
    begun = drafter.begin([[*source, EOS] for source in sources])
    assert [draft.propose([], 99) for draft in begun] == expected
    for one, other in zip(verified(model, sample, drafter, 4), greedy(model, sample), strict=True):
        same(one, other, 1e-6)
