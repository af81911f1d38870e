"""Rules and options of the engine's search, beside the search in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import commands
import pytest
import torch
import toy
from test_engine import SOURCES, WORDS, built, near, reference, settings

from amlp_fairseq import Translator
from amlp_fairseq.engine import isa
from amlp_fairseq.search.drafts import SentenceDraft

MODELS = commands.ROOT / "examples/models"

#: Orders, sizes of n-grams and other options. Where probabilities differ little much is repeated.
REPETITIONS: list[tuple[tuple[int, int, bool], int, dict[str, Any]]] = [
    ((1, 1, False), 1, {}),
    ((1, 1, False), 2, {"beam": 1, "min_len": 12}),
    ((1, 2, False), 2, {"min_len": 9}),
    ((2, 1, False), 2, {"min_len": 8}),
    ((2, 1, True), 1, {"min_len": 6, "keep_all": True}),
    ((2, 2, False), 2, {"count_after_end": True, "min_len": 5}),
    ((2, 0, False), 3, {"min_len": 10, "beam": 2}),
    ((4, 1, True), 2, {"beam": 3, "unk_penalty": 1.0}),
    ((2, 1, False), 1, {"max_len_b": 5, "min_len": 5}),
]


#: The words 5, and 7 and 8, which must not stand in an output.
SUPPRESSED = (((0, 1, 5),), ((0, 1, 7), (1, 2, 8)))


def repeats(words: Sequence[int], size: int) -> bool:
    ngrams = [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]
    return len(set(ngrams)) < len(ngrams)


@pytest.mark.parametrize(("order", "size", "options"), REPETITIONS)
def test_no_ngram_is_repeated(order: tuple[int, int, bool], size: int, options: dict[str, Any]) -> None:
    directions, words, middle = order
    task = toy.task(WORDS, num_directions=directions, words_per_direction=words, middle_to_side=middle)
    network = toy.model(task, seed=1, sharpness=1.0)
    engine, chosen = built(isa.library(), network), settings(**options)
    free, found = (engine.search(SOURCES, {**chosen, "no_repeat_ngram": each}, 1) for each in (0, size))
    near(found, reference(network, task, {**chosen, "no_repeat_ngram": size}))
    before, after = (
        [repeats(each.tokens[:-1], size) for hypotheses in results for each in hypotheses] for results in (free, found)
    )
    assert sum(after) < sum(before)  # those of the longest outputs may remain where two directions meet


@pytest.mark.parametrize("name", ["ar", "ibdecoder_sa"])
def test_repetitions_of_a_model_folder(name: str) -> None:
    """Outputs that are longer than they should be repeat words."""
    texts = ["He sleeps.", "The old doctor sees a very small car."]
    engine, pytorch = (Translator(MODELS / name, backend=backend, min_len=25) for backend in ("engine", "pytorch"))
    before = engine.translate(texts)
    for options in ({"no_repeat_ngram_size": 1}, {"deduplicate_ngrams": 2}):
        found, expected = engine.translations(texts, **options), pytorch.translations(texts, **options)
        assert [each.text for each in found] != before
        for one, other in zip(found, expected, strict=True):
            assert (one.text, one.pieces, one.calls) == (other.text, other.pieces, other.calls)
            assert one.score == pytest.approx(other.score, abs=1e-4)
    assert engine._pytorch is None


@pytest.mark.parametrize("order", [(1, 1, False), (1, 3, False), (2, 1, False), (2, 2, True), (4, 1, False)])
def test_alignments(order: tuple[int, int, bool]) -> None:
    directions, words, middle = order
    task = toy.task(WORDS, num_directions=directions, words_per_direction=words, middle_to_side=middle)
    network = toy.model(task, seed=3, sharpness=1.0, decoder_attention_heads=4)
    with torch.no_grad():
        for layer in network.decoder.layers:
            layer.encoder_attn.q_proj.weight *= 20  # words differ in what they attend to
    chosen = settings(min_len=7, align=True)
    found = built(isa.library(), network).search(SOURCES, chosen, 1)
    near(found, expected := reference(network, task, chosen))
    sources = {source for hypotheses in found for each in hypotheses for source in each.alignment}
    assert len(sources) > 3
    for hypotheses, others in zip(found, expected, strict=True):
        for one, other in zip(hypotheses, others, strict=True):
            assert [(source, place) for place, source in enumerate(one.alignment)] == other["alignment"]
            attention = torch.tensor(one.attention)
            padding = other["attention"].size(0) - attention.size(1)  # on the left
            torch.testing.assert_close(attention, other["attention"][padding:].t(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["ar", "ibdecoder", "ibdecoder_sa"])
def test_alignments_of_a_model_folder(name: str) -> None:
    texts = ["She falls asleep. He sleeps.", "", "The old, old doctor </s> sees\na very small car."]
    engine, pytorch = (
        Translator(MODELS / name, backend=backend, print_alignment="hard") for backend in ("engine", "pytorch")
    )
    for options in ({"beam": 1}, {"deduplicate_ngrams": 2, "min_len": 20}):
        found, expected = engine.translations(texts, **options), pytorch.translations(texts, **options)
        assert [each.alignment for each in found] == [each.alignment for each in expected]
        assert len(found[2].alignment) == len(found[2].pieces)
    assert engine.translations(texts[:1], print_alignment=None)[0].alignment == ()
    assert engine._pytorch is None


class Liar:
    """Proposes new words in each call, end symbols and padding among them."""

    def propose(self, words: list[int], count: int) -> list[int]:
        return [(len(words) * 7 + position) % 20 for position in range(count)]


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"no_repeat_ngram": 2, "min_len": 9, "align": True}, {"repetition_penalty": 1.7, "suppressed": SUPPRESSED}],
)
def test_drafts_change_nothing_but_the_number_of_calls(options: dict[str, Any], int8: bool) -> None:
    """Bit for bit: a row's result does not depend on the rows beside it."""
    task = toy.task(WORDS, num_directions=1)
    engine, chosen = built(isa.library(), toy.model(task, seed=4, sharpness=2.0), int8), settings(beam=1, **options)
    greedy = [each for (each,) in engine.search(SOURCES, chosen, 1)]
    right = [each.tokens[:-1] for each in greedy]
    drafts: dict[str, list[Any]] = {
        "right": right,
        "one wrong": [[*text[:2], 5, *text[3:]] for text in right],
        "too long": [[*text, *text] for text in right],
        "none": [[] for _ in right],
        "new ones": [None for _ in right],
    }
    for kind, texts in drafts.items():
        for words in (1, 3, 50):
            drafted = [Liar() if text is None else SentenceDraft(text) for text in texts]

            def propose(index: int, written: list[int], count: int, drafted: list[Any] = drafted) -> list[int]:
                proposal: list[int] = drafted[index].propose(written, count)
                return proposal

            found = engine.search_drafted(SOURCES, chosen, propose, words, 1 + words % 2)
            for one, (other,) in zip(greedy, found, strict=True):
                assert (one.tokens, one.token_scores, one.score) == (other.tokens, other.token_scores, other.score)
                assert one.alignment == other.alignment
                if kind == "right":
                    assert other.steps == math.ceil(len(one.tokens) / (words + 1))
                if kind == "none":
                    assert other.steps == len(one.tokens)


def test_drafts_that_are_none() -> None:
    task = toy.task(WORDS, num_directions=1)
    engine, chosen = built(isa.library(), toy.model(task)), settings(beam=1)
    for proposal, error in (([-1], ValueError), ([999], ValueError), (["a"], RuntimeError)):
        with pytest.raises(error):
            engine.search_drafted(SOURCES, chosen, lambda *_, proposal=proposal: proposal, 4, 1)

    def failing(*_: Any) -> list[int]:
        raise OSError("no draft")

    with pytest.raises(OSError, match=r"^no draft$"):
        engine.search_drafted(SOURCES, chosen, failing, 4, 1)
    engine = built(isa.library(), toy.model(toy.task(WORDS, num_directions=2)))
    with pytest.raises(ValueError, match="from left to right"):
        engine.search_drafted(SOURCES, chosen, failing, 4, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"draft": "source"},
        {"draft_path": str(MODELS / "ibdecoder_sa"), "draft_words": 3},
        {"draft_path": str(MODELS / "cmlmc")},
        {"draft_file": "memory"},
    ],
)
def test_drafts_of_a_model_folder(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["She falls asleep. He sleeps.", "", "The old doctor sees a very small car."]
    plain = Translator(MODELS / "ar", beam=1, backend="engine")
    greedy = plain.translations(texts)
    memory = "".join(" ".join(each.pieces) + "\n" for each in greedy)
    (tmp_path / "memory").write_text(memory, encoding="utf-8")
    engine, pytorch = (
        Translator(MODELS / "ar", beam=1, backend=backend, **options) for backend in ("engine", "pytorch")
    )
    for given in ({}, {"print_alignment": "hard", "no_repeat_ngram_size": 2}):
        found, expected = engine.translations(texts, **given), pytorch.translations(texts, **given)
        for one, other in zip(found, expected, strict=True):
            assert (one.text, one.pieces, one.calls) == (other.text, other.pieces, other.calls)
            assert one.alignment == other.alignment
            assert one.score == pytest.approx(other.score, abs=1e-4)
        if not given:
            assert [(each.text, each.score) for each in found] == [(each.text, each.score) for each in greedy]
            assert sum(each.calls for each in found) < sum(each.calls for each in greedy) or options == {
                "draft": "source"
            }
    assert engine._pytorch is None
    with pytest.raises(ValueError, match=r"--beam 4"):
        engine.translate(texts, beam=4)


@pytest.mark.parametrize("name", ["ibdecoder", "ibdecoder_sa"])
def test_reranking(name: str) -> None:
    texts = ["She falls asleep. He sleeps.", "", "The old doctor sees a very small car."]
    options: dict[str, Any] = {"beam": 6, "nbest": 6, "rescore_path": str(MODELS / "ar")}
    engine, pytorch = (Translator(MODELS / name, backend=backend, **options) for backend in ("engine", "pytorch"))
    own = Translator(MODELS / name, backend="engine", **{**options, "rescore_path": ""}).translations(texts)
    for given in ({}, {"unnormalized": True, "deduplicate_ngrams": 1}, {"print_alignment": "hard"}):
        found, expected = engine.translations(texts, **given), pytorch.translations(texts, **given)
        for one, other in zip(found, expected, strict=True):
            assert (one.text, one.calls, one.alignment) == (other.text, other.calls, other.alignment)
            assert [text for text, _ in one.alternatives] == [text for text, _ in other.alternatives]
            assert one.score == pytest.approx(other.score, abs=1e-4)
    assert [each.score for each in engine.translations(texts)] != [each.score for each in own]
    assert engine._pytorch is None


def test_other_models_decode_in_the_same_type() -> None:
    for name, options in (("ibdecoder", {"rescore_path": "ar"}), ("ar", {"draft_path": "ibdecoder", "beam": 1})):
        paths = {option: value if option == "beam" else str(MODELS / str(value)) for option, value in options.items()}
        loaded: Any = Translator(MODELS / name, backend="engine", decode_dtype="int8", **paths)._engine
        other = loaded.reranker or loaded.drafter.model
        assert loaded.model.decode_dtype == other.decode_dtype == "int8"


def test_a_length_that_is_no_whole_number_of_the_machine() -> None:
    engine = built(isa.library(), toy.model(toy.task(WORDS, num_directions=2)))
    found, expected = (
        [[each.tokens for each in hypotheses] for hypotheses in engine.search(SOURCES, settings(**options), 1)]
        for options in ({"max_len_a": 1e300}, {"max_len_b": 1 << 20})
    )
    assert found == expected


def test_scores_are_those_of_the_search() -> None:
    """What a search finds has the score that it had, whether its beginning is shared with other texts or not."""
    task = toy.task(WORDS, num_directions=1)
    engine, chosen = built(isa.library(), toy.model(task)), settings(length_penalty=0.7)
    found = engine.search(SOURCES, chosen, 1)
    texts = [[each.tokens for each in hypotheses] for hypotheses in found]
    for threads in (1, 2):
        scored = engine.score(SOURCES, texts, chosen, threads)
        for hypotheses, others in zip(found, scored, strict=True):
            for one, other in zip(hypotheses, others, strict=True):
                assert (one.tokens, one.token_scores, one.score) == (other.tokens, other.token_scores, other.score)
    ((alone,),) = engine.score(SOURCES[2:3], [texts[2][1:2]], chosen, 1)
    assert (alone.token_scores, alone.score) == (found[2][1].token_scores, found[2][1].score)
    for wrong in ([[[]]] * 4, [[[999]]] * 4, []):
        with pytest.raises(ValueError, match=r"token|sources"):
            engine.score(SOURCES, wrong, chosen, 1)


def test_auxiliary_models_that_pytorch_must_load(tmp_path: Path) -> None:
    """Its text says what is wrong with them."""
    for options in (
        {"rescore_path": str(tmp_path), "beam": 4},
        {"rescore_path": str(MODELS / "ibdecoder"), "beam": 4},
        {"draft_path": str(tmp_path / "missing.pt"), "beam": 1},
        {"draft_path": str(MODELS / "ibdecoder"), "draft": "source", "beam": 1},
    ):
        with pytest.raises(ValueError, match=r"--rescore-path|--draft-path"):
            Translator(MODELS / "ar", **options)
