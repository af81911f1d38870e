"""Texts that must not be written, and words that are less likely when they have been written, beside stock fairseq's
search, which is told what words may follow, and beside the search in PyTorch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import toy
from fairseq.search import PrefixConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from test_engine import SOURCES, WORDS, built, near, reference, settings

from amlp_fairseq.engine import isa
from amlp_fairseq.engine.order import Order

#: The words 5 and 9, 7 after 8 and 12 after 12.
TEXTS: tuple[tuple[int, ...], ...] = ((5,), (9,), (8, 7), (12, 12))


def chains(texts: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    return tuple(tuple((place, place + 1, token) for place, token in enumerate(text)) for text in texts)


def has(words: list[int], text: tuple[int, ...]) -> bool:
    return any(tuple(words[place : place + len(text)]) == text for place in range(len(words)))


def common(found: list[list[Any]]) -> tuple[tuple[int, ...], ...]:
    """The most frequent words and pairs of words of outputs."""
    texts = [each.tokens[:-1] for hypotheses in found for each in hypotheses]
    words = [(word,) for text in texts for word in text]
    pairs = [pair for text in texts for pair in pairwise(text)]
    return tuple(max(set(each), key=each.count) for each in (words, pairs)) + tuple(sorted(set(pairs))[::3])


@pytest.mark.parametrize("beam", [1, 4])
def test_the_words_of_stock_fairseq(beam: int) -> None:
    task = toy.task(WORDS, num_directions=1)
    network = toy.model(task, seed=2, sharpness=1.0)
    engine = built(isa.library(), network)
    texts = common(engine.search(SOURCES, settings(beam=beam), 1))
    words = range(len(task.tgt_dict))

    def allowed(sentence: int, written: torch.Tensor) -> list[int]:
        before = written.tolist()[1:]
        return [word for word in words if not any(has([*before, word][-len(text) :], text) for text in texts)]

    search = PrefixConstrainedBeamSearch(task.tgt_dict, allowed)
    stock = SequenceGenerator([network], task.tgt_dict, beam_size=beam, max_len_b=12, search_strategy=search)
    found = engine.search(SOURCES, settings(beam=beam, suppressed=chains(texts)), 1)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        batch = {"net_input": {"src_tokens": torch.tensor([source]), "src_lengths": torch.tensor([len(source)])}}
        (expected,) = stock.generate([network], batch)
        assert [each.tokens for each in hypotheses] == [each["tokens"].tolist() for each in expected]


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize(
    "order", [(1, 1, False), (1, 3, False), (2, 1, False), (2, 1, True), (2, 2, False), (2, 0, True), (4, 1, False)]
)
def test_no_order_writes_them(order: tuple[int, int, bool], sampling: bool) -> None:
    """Neither within a direction nor where two meet."""
    directions, words, middle = order
    task = toy.task(WORDS, num_directions=directions, words_per_direction=words, middle_to_side=middle)
    engine = built(isa.library(), toy.model(task, seed=1, sharpness=1.0))
    chosen = settings(min_len=5, sampling=sampling)
    texts = common(engine.search(SOURCES, chosen, 1))
    found = engine.search(SOURCES, {**chosen, "suppressed": chains(texts)}, 1)
    outputs = [each.tokens[:-1] for hypotheses in found for each in hypotheses]
    assert len(outputs) >= len(SOURCES)
    assert [(text, output) for output in outputs for text in texts if has(output, text)] == []


def test_given_words_are_written_all_the_same() -> None:
    """Elsewhere, and where given words meet others, the texts are not."""
    task = toy.task(WORDS, num_directions=2, words_per_direction=1)
    engine = built(isa.library(), toy.model(task, seed=1, sharpness=0.1))  # nearly all is as likely
    first, last = [5, 6], [7, 5, 6]
    texts = ((5, 6), (7, 5), *((6, token) for token in range(7, 14)))
    chosen = {**settings(sampling=True, beam=60, min_len=7), "suppressed": chains(texts)}
    found = engine.search(SOURCES[:1], chosen, 1, [Order(2, 2, False).ends(first, last)])
    outputs = [each.tokens[:-1] for each in found[0]]
    assert len(outputs) > 10
    for output in outputs:
        assert (output[:2], output[-3:]) == (first, last)
        assert not any(has(output[1:-2], text) or has(output[1:-1], (6, 7)) for text in texts)


def test_all_ways_to_cut_a_text() -> None:
    """Of a text of three characters 5 6 7 are each, and 8 is the last two."""
    task = toy.task(WORDS, num_directions=1)
    engine = built(isa.library(), toy.model(task, seed=2, sharpness=0.1))  # nearly all is as likely
    chosen = settings(sampling=True, beam=200, max_len_b=40, min_len=40)
    ways = ((0, 1, 5), (1, 2, 6), (2, 3, 7), (1, 3, 8))
    texts = ((5, 6, 7), (5, 8))
    before, after = (
        [each.tokens for each in engine.search(SOURCES[:1], {**chosen, "suppressed": one}, 1)[0]]
        for one in ((), (ways,))
    )
    assert any(has(output, (5, 8)) for output in before)
    assert not any(has(output, text) for output in after for text in texts)
    assert any(has(output, (6, 7)) for output in after)
    for wrong in (((1, 0, 5),), ((0, 1, 999),)):
        with pytest.raises(ValueError, match=r"suppressed|token"):
            engine.search(SOURCES, {**chosen, "suppressed": (wrong,)}, 1)


@pytest.mark.parametrize("order", [(1, 1, False), (1, 3, False), (2, 1, False), (2, 2, True)])
def test_repetition_penalty(order: tuple[int, int, bool]) -> None:
    directions, words, middle = order
    task = toy.task(WORDS, num_directions=directions, words_per_direction=words, middle_to_side=middle)
    network = toy.model(task, seed=1, sharpness=1.0)
    engine = built(isa.library(), network)
    free = engine.search(SOURCES, settings(min_len=9), 1)
    for options in ({"repetition_penalty": 1.6}, {"repetition_penalty": 0.7, "temperature": 1.3, "beam": 1}):
        chosen = settings(min_len=9, **options)
        near(found := engine.search(SOURCES, chosen, 1), reference(network, task, chosen))
        assert [each[0].tokens for each in found] != [each[0].tokens for each in free]


def test_the_penalty_by_hand() -> None:
    """Greedy search with the logits of the network, word by word."""
    task = toy.task(WORDS, num_directions=1)
    network = toy.model(task, seed=1, sharpness=1.0)
    (found,) = built(isa.library(), network).search(SOURCES[:1], settings(beam=1, repetition_penalty=1.8), 1)
    source, written = torch.tensor(SOURCES[:1]), [2]
    for score in found[0].token_scores:
        with torch.no_grad():
            logits = network(source, torch.tensor([source.size(1)]), torch.tensor([written]))[0][0, -1].double()
        for word in {*written[1:]}:
            logits[word] = logits[word] * 1.8 if logits[word] < 0 else logits[word] / 1.8
        scores = logits.log_softmax(0)
        scores[1] = -torch.inf
        if len(written) == 1:
            scores[2] = -torch.inf  # --min-len 1
        if len(written) == 13:
            scores[:2] = scores[3:] = -torch.inf
        written.append(int(scores.argmax()))
        assert float(scores.max()) == pytest.approx(score, abs=1e-4)
    assert written[1:] == found[0].tokens
    assert len(written) > 4


@pytest.mark.parametrize("least", [0.05, 0.3, 1.0])
def test_samples_of_probable_words(least: float) -> None:
    """No word of a sample has less than that share of the best one's probability. A sample is often of others without
    the rule."""
    task = toy.task(WORDS, num_directions=1)
    network = toy.model(task, seed=1, sharpness=1.0)
    engine, source = built(isa.library(), network), torch.tensor(SOURCES[:1])
    chosen = settings(sampling=True, beam=20, min_len=0)
    shares = []
    for options in ({"sampling_minp": least}, {"sampling_minp": least, "sampling_topp": 0.9}, {}):
        (found,) = engine.search(SOURCES[:1], {**chosen, **options}, 1)
        shares.append(1.0)
        for each in found:
            read = torch.tensor([[2, *each.tokens[:-1]]])
            with torch.no_grad():
                scores = network(source, torch.tensor([source.size(1)]), read)[0][0].log_softmax(-1)
            scores[:, 1] = -torch.inf
            of_words = scores.gather(1, torch.tensor(each.tokens).unsqueeze(1)).squeeze(1)[:12]  # the end is forced
            shares[-1] = min(shares[-1], float((of_words - scores.max(1).values[:12]).exp().min()))
    assert shares[0] >= least * 0.999
    assert shares[1] >= least * 0.999
    assert shares[2] < least * 0.999


def test_probable_alternatives() -> None:
    task = toy.task(WORDS, num_directions=1)
    engine = built(isa.library(), toy.model(task, seed=1, sharpness=1.0))
    chosen = settings(alternatives=True, beam=10)
    all_of_them = engine.search(SOURCES, chosen, 1)
    least = sorted(each.token_scores[0] for each in all_of_them[0])[5]
    some = engine.search(SOURCES, {**chosen, "min_alternative_prob": float(torch.tensor(least - 1e-6).exp())}, 1)
    for many, few in zip(all_of_them, some, strict=True):
        kept = [each.tokens for rank, each in enumerate(many) if rank == 0 or each.token_scores[0] >= least - 1e-6]
        assert [each.tokens for each in few] == kept
    assert len(some[0]) == 5
    (one,) = engine.search(SOURCES[:1], {**chosen, "min_alternative_prob": 1.0}, 1)
    assert len(one) == 1
