"""Reranking against fairseq's scorer."""

from __future__ import annotations

from typing import Any

import pytest
import tolerance
import torch
import toy
from pairwise import pairwise

from amlp_fairseq.decoding.step_decoder import StepDecoder
from amlp_fairseq.models.average_attention import AANTransformerConfig, AANTransformerModel
from amlp_fairseq.models.plugin_transformer import PluginTransformerConfig, PluginTransformerModel
from amlp_fairseq.search import reranking
from amlp_fairseq.search.multiword_beam_search import MultiwordBeamSearch
from amlp_fairseq.search.options import SearchOptions
from amlp_fairseq.search.reranking import Reranker

pytestmark = pytest.mark.usefixtures("backend")

ONE_WORD = toy.task(num_directions=1)
KERNELS = {"decoder_kernel_size_list": [3, 3]}


CHOOSERS = {
    "fairseq's Transformer": lambda: toy.stock_transformer(ONE_WORD, seed=5),
    "plugin_transformer": lambda: toy.left_to_right(ONE_WORD, PluginTransformerModel, PluginTransformerConfig),
    "average attention": lambda: toy.left_to_right(ONE_WORD, AANTransformerModel, AANTransformerConfig),
    "dynamic convolution": lambda: toy.model(ONE_WORD, 5, decoder_self_attention_type="dynamic_conv", **KERNELS),
    "autoregressive": lambda: toy.model(ONE_WORD, 5),
}


def searched(
    task: Any, sources: list[list[int]], reranking_model: Any, use_engine: bool = True, **options: Any
) -> list[list[dict[str, Any]]]:
    chosen = SearchOptions(**{"beam_size": 4, "max_len_b": 12, **options})
    search = MultiwordBeamSearch([toy.model(task, 1)], task.tgt_dict, task.order, chosen, reranking_model, use_engine)
    return search.generate(search.models, toy.batch(sources, task.src_dict))


@pytest.mark.parametrize(
    ("name", "backend", "words_per_direction", "most_words"),
    pairwise(list(CHOOSERS), ["engine", "PyTorch"], [1, 2], [1, 2048]),  # one sentence at a time, or all together
    indirect=["backend"],
)
def test_scores_are_those_of_fairseqs_scorer(
    name: str, words_per_direction: int, most_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reranking, "MAX_WORDS", most_words)
    reranking_model, task = CHOOSERS[name](), toy.task(num_directions=2, words_per_direction=words_per_direction)
    sources = toy.random_sources(4, 12, seed=3)
    own, actual = searched(task, sources, None), searched(task, sources, reranking_model)
    differ = 0
    for source, before, after in zip(sources, own, actual, strict=True):
        words = [hypothesis["tokens"].tolist()[:-1] for hypothesis in before]
        scored = toy.scored_by_fairseq(task.tgt_dict, reranking_model, [source] * len(words), words)
        best = sorted(scored, key=lambda hypothesis: -float(hypothesis["score"]))
        assert [each["tokens"].tolist() for each in after] == [each["tokens"].tolist() for each in best]
        for mine, other in zip(after, best, strict=True):
            assert float(mine["score"]) == pytest.approx(float(other["score"]), abs=tolerance.of_scores(9))
            torch.testing.assert_close(
                mine["positional_scores"], other["positional_scores"], atol=tolerance.of_scores(), rtol=0
            )
        assert sorted(each["steps"] for each in after) == sorted(each["steps"] for each in before)
        differ += after[0]["tokens"].tolist() != before[0]["tokens"].tolist()
    assert differ  # it did change choices


@pytest.mark.parametrize("name", CHOOSERS)
def test_hypotheses_of_any_length(name: str) -> None:
    """Hypotheses longer than the initial buffers: one or several of a sentence, equal ones, and shared prefixes."""
    reranking_model, words, random = CHOOSERS[name](), ONE_WORD.tgt_dict, torch.Generator().manual_seed(1)
    sources = toy.random_sources(3, 12, seed=3)

    def drawn(count: int) -> list[int]:
        return torch.randint(words.nspecial, len(words), (count,), generator=random).tolist()

    begin = drawn(50)
    hypotheses = [[drawn(7)], [begin + drawn(50), begin + drawn(3), begin], [[], drawn(2), drawn(1), drawn(1) * 2]]
    hypotheses[2].append(hypotheses[2][1])
    actual = [[{"tokens": torch.tensor([*each, words.eos()])} for each in of_one] for of_one in hypotheses]
    rows = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor([*source, words.eos()]) for source in sources], True, words.pad(), padding_side="left"
    )
    with torch.no_grad():
        Reranker(words).rerank(reranking_model, rows, actual, torch.div)
    for source, of_one, scored in zip(sources, hypotheses, actual, strict=True):
        expected = toy.scored_by_fairseq(words, reranking_model, [source] * len(of_one), of_one)
        for mine, other in zip(scored, expected, strict=True):
            assert float(mine["score"]) == pytest.approx(float(other["score"]), abs=tolerance.of_scores(9))
            torch.testing.assert_close(
                mine["positional_scores"], other["positional_scores"], atol=tolerance.of_scores(), rtol=0
            )


def test_each_prefix_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoders with softmax attention read shared prefixes once, and other decoders all rows."""
    task, sources, reads = toy.task(num_directions=2), toy.random_sources(4, 12, seed=3), []
    decode = StepDecoder.decode
    reranking_model = toy.left_to_right(ONE_WORD, PluginTransformerModel, PluginTransformerConfig)

    def counted(self: StepDecoder, words: Any, *arguments: Any) -> Any:
        if self.words_per_step == 1:
            reads.append(words.shape)
        return decode(self, words, *arguments)

    monkeypatch.setattr(StepDecoder, "decode", counted)
    actual = searched(task, sources, reranking_model, use_engine=False)
    prefixes = []
    for of_sentence in actual:
        rows = [each["tokens"].tolist() for each in of_sentence]
        prefixes.append(len({tuple(row[:length]) for row in rows for length in range(len(row))}))
        assert prefixes[-1] < sum(map(len, rows))
    assert reads == [(4, max(prefixes))]


def test_the_length_penalty_is_the_searchs() -> None:
    task, reranking_model = toy.task(num_directions=2), toy.stock_transformer(ONE_WORD, seed=5)
    sources = toy.random_sources(4, 12, seed=3)
    for actual in searched(task, sources, reranking_model, len_penalty=0.3):
        for each in actual:
            total = float(each["positional_scores"].sum())
            assert float(each["score"]) == pytest.approx(total / len(each["tokens"]) ** 0.3, abs=tolerance.of_scores(9))
    for actual in searched(task, sources, reranking_model, normalize_scores=False):
        for each in actual:
            assert float(each["score"]) == pytest.approx(
                float(each["positional_scores"].sum()), abs=tolerance.of_scores(9)
            )


def test_sources_without_words_stay_empty() -> None:
    task, reranking_model = toy.task(num_directions=2), toy.stock_transformer(ONE_WORD, seed=5)
    empty, other = searched(task, [[], [4, 5]], reranking_model)
    assert [each["tokens"].tolist() for each in empty] == [[task.tgt_dict.eos()]]
    assert float(empty[0]["score"]) == 0
    (alone,) = searched(task, [[4, 5]], reranking_model)
    assert [each["tokens"].tolist() for each in other] == [each["tokens"].tolist() for each in alone]


def test_outputs_fit_the_model_that_chooses() -> None:
    task, reranking_model = toy.task(num_directions=2), toy.stock_transformer(ONE_WORD, seed=5)
    reranking_model.decoder.max_target_positions = 4
    for actual in searched(task, toy.random_sources(4, 12, seed=3), reranking_model, min_len=3):
        assert {len(each["tokens"]) for each in actual} == {4}  # with the end symbol


def test_int8_scores_are_near() -> None:
    task, reranking_model = (
        toy.task(num_directions=2),
        toy.left_to_right(ONE_WORD, PluginTransformerModel, PluginTransformerConfig),
    )
    sources = toy.random_sources(4, 12, seed=7)
    exact = searched(task, sources, reranking_model)
    near = searched(task, sources, reranking_model, decode_dtype="int8")
    for one, other in zip(exact, near, strict=True):
        scores = {tuple(each["tokens"].tolist()): float(each["score"]) for each in one}
        common = [each for each in other if tuple(each["tokens"].tolist()) in scores]
        assert common
        for each in common:
            assert float(each["score"]) == pytest.approx(scores[tuple(each["tokens"].tolist())], abs=0.1)
